/**
 * The mesh view: the ranks and the matrices that figures/mesh.py drew, lit as the choice says. The reader chooses a
 * rank (click, arrow keys) and a parameter; the kernel hears of both.
 */
import { fit } from "./room.js";
import { View, make, rendered, roomy, scenesOf } from "./view.js";

const FLAT = "Parameters lie end to end, cut in equal parts: of a single one, a rank may have little.";
const NARROW = 560; // px of a window in which the matrix stands below the ranks

class MeshView extends View {
  buildBody() {
    this.svg = make("svg", { tabindex: 0, role: "listbox", "aria-label": "ranks of the mesh" }, this.stage);
    this.legend = make("div", { class: "tpv-legend" }, this.stage);
    this.side = make("div", { class: "tpv-tools" }, this.rail);
    this.menu = make("select", { "aria-label": "parameter" }, make("label", {}, this.side, "parameter "));
    this.menu.addEventListener("change", () => this.publish({ parameter: this.menu.value }));
    make("div", { class: "tpv-hint" }, this.below,
      "Click a rank, or use arrow keys (Shift: within a block), Home, End.");
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
    this.svg.addEventListener("click", ({ target }) => {
      const { rank, many } = target.closest("[data-rank]")?.dataset ?? {};
      this.svg.focus({ preventScroll: true });
      if (rank) this.choose(Number(rank) + this.chosen % many);
    });
  }

  load() {
    const { ground = "", squares = "", parameters = [] } = this.scene = this.host.get("scene");
    this.menu.replaceChildren(...parameters.map((p) => make("option", { value: p.name }, null, p.name)));
    this.common = this.group(ground + squares);
    this.squares = [...this.common.querySelectorAll("[data-rank]")];
  }

  get size() { return this.scene.axes.reduce((product, { size }) => product * size, 1); }
  get chosen() { return Math.min(this.host.get("rank"), this.size - 1); }

  /** {axis: the ranks of a rank's group}, as `groups` in figures/mesh.py. */
  groups(rank) {
    return Object.fromEntries(this.scene.axes.map(({ name, size, stride }) => [name,
      Array.from({ length: size }, (_, i) => rank + (i - Math.floor(rank / stride) % size) * stride)]));
  }

  draw() {
    const { scene, svg, chosen } = this, { axes, block, ranks, apart, parameters } = scene;
    const mine = this.groups(chosen), first = chosen - chosen % block;
    this.root.setAttribute("aria-label", `Mesh ${scene.title}`);
    const narrow = this.stage.clientWidth < NARROW, sized = (of) => [
      narrow && of.stack?.[2] || of.width, (narrow && of.stack?.[3] || of.height) - of.top];
    const [width, high] = sized(scene), [right, down] = (narrow && scene.stack) || [0, 0];
    fit(this, sized);
    this.resize(svg, width, high + scene.top, scene.top);
    svg.setAttribute("aria-activedescendant", `${this.uid}-${apart.length ? 1 : block}`);
    svg.replaceChildren(this.common);
    this.squares.forEach((square, i) => (i < ranks.length ? this.light(square, ranks[i].rank, block, mine)
      : this.light(square, first + i - ranks.length, 1, mine)));
    const flat = (of) => of.parameters.some(({ notation }) => notation.startsWith("flat"));
    const where = `Rank ${chosen} is at ${axes.map(({ name }) => `${name} ${mine[name].indexOf(chosen)}`).join(", ")}.`;
    roomy(this.now, [where + (scenesOf(this).some(flat) ? ` ${FLAT}` : "")]);
    this.now.textContent = flat(scene) ? `${where} ${FLAT}` : where;
    const words = axes.map(({ name }) => `${name}: ranks ${listed(mine[name])}`);
    this.drawLegend([[{ key: "fg", pattern: "solid" }, `rank ${chosen}, and what it owns`], ...axes.map((axis, i) => [axis, words[i]])]);
    if (this.moved) this.live.textContent = [this.now.textContent, ...words].join("; ");
    const most = Math.max(...scenesOf(this).map((of) => of.axes.length));
    this.legend.style.minHeight = `${1.6 * (1 + most)}em`; // a line each
    this.side.hidden = !parameters.length;
    this.drawHead(scene, parameters.length ? this.drawOwn(chosen, `translate(${right ?? 0},${down ?? 0})`) : []);
  }

  /** A square, of `many` ranks from `rank` on: chosen, or in the ink of the axis whose group joins it with that. */
  light(square, rank, many, groups) {
    const within = (r) => r >= rank && r < rank + many, own = within(this.chosen);
    const axis = own ? null : this.scene.axes.find(({ name }) => groups[name].some(within));
    const [title, face, ...words] = [...square.children].filter((node) => !node.matches(".tpv-mark"));
    Object.assign(square.dataset, { rank, many });
    square.setAttribute("aria-selected", own);
    square.toggleAttribute("id", own);
    if (own) square.id = `${this.uid}-${many}`;
    face.setAttribute("class", own ? "f-fg" : axis ? `f-${axis.key}` : "f-bg s-muted");
    square.querySelector(".tpv-mark")?.remove();
    if (axis && axis.pattern !== "solid") {
      const mark = face.cloneNode();
      mark.setAttribute("class", "tpv-mark");
      mark.setAttribute("fill", this.tile(axis.pattern));
      face.after(mark);
    }
    for (const word of words) word.setAttribute("class", own ? "f-bg" : axis ? `f-halo-${axis.key}` : "f-fg");
    if (many > 1 || !this.scene.apart.length) return;
    words[0].textContent = rank;
    title.textContent = `rank ${rank}`;
  }

  /** The matrix of the parameter chosen with a rank's block over it, as `_owned` in figures/mesh.py; and its facts. */
  drawOwn(rank, transform) {
    const { parameters } = this.scene, parameter = parameters.find((p) => p.name === this.host.get("parameter")) ?? parameters[0];
    const number = parameter.block_of[rank], [, , wide, high] = parameter.blocks[number].box, share = wide * high;
    const drawn = this.group(parameter.drawn, this.svg), name = drawn.querySelector(`[data-block='${number}']`);
    drawn.setAttribute("transform", transform);
    this.menu.value = parameter.name;
    if (share) {
      make("path", { class: "f-fg s-fg", "stroke-width": 3,
        d: drawn.querySelector("path").getAttribute("d").split(/(?=M)/)[number] }, drawn);
      name?.setAttribute("class", "f-bg");
      if (name) drawn.append(name);
    }
    const count = Math.round(share * parameter.elements).toLocaleString("en");
    return [[`rank ${rank} owns`, `${+(100 * share).toPrecision(3)} %, ${count} elements`]];
  }

  choose(rank) {
    this.moved = rank !== this.chosen && rank >= 0 && rank < this.size;
    if (this.moved) this.publish({ rank });
  }

  keys({ shiftKey }) {
    const walk = (right, down) => () => (shiftKey ? this.choose(this.chosen + right + down) : this.walk(right, down));
    return { Home: () => this.choose(0), End: () => this.choose(this.size - 1), ArrowRight: walk(1, 0),
      ArrowLeft: walk(-1, 0), ArrowDown: walk(0, 1), ArrowUp: walk(0, -1) };
  }

  /** To the nearest square in a direction on the picture. */
  walk(right, down) {
    const { places, block } = this.scene, here = places[Math.floor(this.chosen / block)];
    let best = null;
    places.forEach((place, square) => {
      const [dx, dy] = place.map((v, i) => v - here[i]);
      const ahead = dx * right + dy * down, aside = Math.abs(dx * down) + Math.abs(dy * right);
      if (ahead > 0 && (!best || ahead + 3 * aside < best[0])) best = [ahead + 3 * aside, square];
    });
    if (best) this.choose(best[1] * block + this.chosen % block);
  }
}

/** Ranks in words: of many the first ones and the last, as in figures/mesh.py. */
const listed = (ranks) => (ranks.length <= 16 ? ranks.join(", ")
  : `${ranks.slice(0, 3).join(", ")}, ... ${ranks.at(-1)} (${ranks.length} ranks)`);

export default rendered(MeshView, "mesh", ["rank", "parameter"]);
