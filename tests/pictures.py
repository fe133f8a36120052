"""What a reader sees of a notebook in a page: pictures, each with words, and nothing broken."""

PROBE = """() => {
  const seen = (selector, of = document) => [...of.querySelectorAll(selector)].filter((node) =>
    node.checkVisibility({ visibilityProperty: true }));
  const outputs = seen(".jp-OutputArea-child");
  const images = outputs.flatMap((one) => seen("img, svg[role=img]", one));
  const ids = [...document.querySelectorAll(".jp-OutputArea-child [id]")].map((node) => node.id);
  return {
    pictures: images.filter((one) => one.complete ?? true).length,
    wordless: images.filter((one) => !(one.alt || one.getAttribute("aria-label"))).length,
    broken: images.filter((one) => one.localName === "img" && !one.naturalWidth).length,
    gaps: outputs.filter((one) => !one.innerText.trim() && !seen("img, svg", one).length)
      .map((one) => one.offsetHeight).filter((height) => height > 4),
    live: seen(".tpv[data-ready]").length,
    twice: ids.filter((id, i) => ids.indexOf(id) !== i),
    text: outputs.map((one) => one.innerText).join("\\n"),
  };
}"""
ARRIVED = f"""([count, alive]) => {{
  const waits = document.getAnimations().some((one) => one.animationName === "tpv-still");
  const {{ pictures, live }} = ({PROBE})();
  return !waits && pictures === count && live === alive;
}}"""
HEIGHTS = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const jumps = [];
  let moves = 0;
  for (const place of document.querySelectorAll(".tpv-place")) {
    const high = () => place.getBoundingClientRect().height, first = high();
    for (const control of place.querySelectorAll("input[type=range], select")) {
      const { tagName, max, options, ariaLabel, value: opened } = control;
      const last = tagName === "SELECT" ? options.length - 1 : Number(max);
      for (const at of new Set([0, 1, 2, 3, last].filter((at) => at <= last))) {
        control.value = options?.[at].value ?? at;
        for (const name of ["input", "change"]) control.dispatchEvent(new Event(name));
        await frame();
        await frame();
        moves++;
        if (Math.abs(high() - first) > 0.5) jumps.push(
          `${place.dataset.view}, ${ariaLabel} ${control.value}: ${high() - first} px`);
      }
      control.value = opened;
      for (const name of ["input", "change"]) control.dispatchEvent(new Event(name));
    }
  }
  return { moves, jumps };
}"""
ERRORS = "Error displaying widget", "model not found", "Loading widget", "Traceback"


def check_pictures(page, count, live=0):
    """A page's outputs: so many static pictures and live views, and nothing that disappoints.
    Returns their text."""
    page.wait_for_function(ARRIVED, arg=[count, live])
    seen = page.evaluate(PROBE)
    text = seen.pop("text")
    assert [error for error in ERRORS if error in text] == []
    bad = {"wordless": 0, "broken": 0, "gaps": [], "twice": []}
    assert seen == {"pictures": count, "live": live, **bad}, (seen, text)
    return text


def check_heights(page):
    """No slider and no menu of a page changes the height of its view. Returns how often one was
    moved."""
    found = page.evaluate(HEIGHTS)
    assert found["jumps"] == []
    return found["moves"]
