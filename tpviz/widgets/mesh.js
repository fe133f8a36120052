/**
 * The mesh view: the scene made by figures/mesh.py as a grid of ranks and the blocks of one parameter.
 * The reader chooses a rank (click, arrow keys) and a parameter; the kernel hears of both.
 */
import { View, amount, make, rendered } from "./view.js";

const MATRIX = 220; // px of a parameter's longer side

class MeshView extends View {
  buildBody() {
    const body = make("div", { class: "tpv-mesh-body" }, this.root), left = make("div", {}, body);
    this.svg = make("svg", { tabindex: 0, role: "listbox", "aria-label": "ranks of the mesh" }, left);
    this.side = make("div", {}, body);
    const label = make("label", {}, this.side, "parameter ");
    this.menu = make("select", { "aria-label": "parameter" }, label);
    this.menu.addEventListener("change", () => this.publish({ parameter: this.menu.value }));
    this.facts = make("div", {}, this.side);
    this.matrix = make("svg", { role: "img" }, this.side);
    this.legend = make("div", { class: "tpv-legend" }, this.root);
    make("div", { class: "tpv-hint" }, this.root, "Click a rank, or use the arrow keys; Home and End jump.");
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
  }

  load() {
    this.scene = this.host.get("scene");
    this.menu.replaceChildren(...(this.scene.parameters ?? []).map((p) => make("option", { value: p.name }, null, p.name)));
    this.common = this.group(this.scene.common ?? "");
  }

  get chosen() { return this.scene.ranks[Math.min(this.host.get("rank"), this.scene.ranks.length - 1)]; }

  draw() {
    const { scene, svg } = this, { chosen } = this;
    this.drawHead(scene);
    this.root.setAttribute("aria-label", `Mesh ${scene.title}`);
    this.resize(svg, scene.width, scene.height, scene.top);
    svg.setAttribute("aria-activedescendant", `${this.uid}-${chosen.rank}`);
    svg.replaceChildren(this.common);
    for (const axis of scene.axes) this.drawGroup(axis, chosen);
    for (const here of scene.ranks) this.drawRank(here, chosen);
    this.drawLegend(scene.axes.map((axis) => [axis, `${axis.name}: ranks ${chosen.groups[axis.name].join(", ")}`]),
      `rank ${chosen.rank} and its groups:`);
    this.side.hidden = !scene.parameters.length;
    if (scene.parameters.length) this.drawMatrix(chosen.rank);
  }

  /** A line through the members of the chosen rank's group: communication goes along it. */
  drawGroup(axis, chosen) {
    const { cell, places } = this.scene, points = chosen.groups[axis.name].map((r) => places[r].map((v) => v + cell / 2));
    make("path", { d: `M${points.map((p) => p.join(",")).join("L")}`,
      class: `s-${axis.key}`, fill: "none", "stroke-width": 5, "stroke-opacity": .8 }, this.svg);
  }

  drawRank(here, chosen) {
    const { places, cell: size, top } = this.scene, [x, y] = places[here.rank], mine = here.rank === chosen.rank;
    const axis = mine ? undefined : this.scene.axes.find((a) => chosen.groups[a.name].includes(here.rank));
    const where = Object.entries(here.coords).map(([name, i]) => `${name} ${i}`).join(", ");
    const group = make("g", { id: `${this.uid}-${here.rank}`, role: "option", "aria-selected": mine,
      "aria-label": `rank ${here.rank}: ${where}${axis ? `, in the ${axis.name} group of rank ${chosen.rank}` : ""}`,
      "data-rank": here.rank, style: "cursor:pointer" }, this.svg);
    const box = (look) => make("rect", { x, y, width: size, height: size, rx: 7, ...look }, group);
    box({ class: mine ? "f-fg" : axis ? `f-${axis.key}` : "f-bg s-muted" });
    if (axis && axis.pattern !== "solid") box({ fill: this.tile(axis.pattern) });
    if (mine) make("rect", { x: x - 3.5, y: y - 3.5, width: size + 7, height: size + 7, rx: 10, class: "s-fg",
      fill: "none", "stroke-width": 2 }, group);
    const roomy = size > 40, text = (up, look, words) => make("text", { x: x + size / 2, y: y + up, ...look,
      "text-anchor": "middle", class: mine ? "f-bg" : axis ? `f-halo-${axis.key}` : "f-fg" }, group, words);
    text(size / 2 + (roomy ? -1 : 4), { "font-size": roomy ? 14 : 12, "font-weight": 700 }, here.rank);
    if (roomy) text(size - 9, { "font-size": 11 }, axis ? axis.name : Object.values(here.coords).join(","));
    group.addEventListener("click", () => { this.svg.focus({ preventScroll: true }); this.choose(here.rank); });
    group.addEventListener("pointerenter", () => this.showTip(`rank ${here.rank}`, [where,
      ...Object.entries(here.groups).map(([name, ranks]) => `${name} group: ranks ${ranks.join(", ")}`)], x + size, y + size - top));
    group.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  drawMatrix(rank) {
    const { matrix, scene } = this;
    const parameter = scene.parameters.find((p) => p.name === this.host.get("parameter")) ?? scene.parameters[0];
    this.menu.value = parameter.name;
    const { shape, blocks } = parameter, [across, down] = shape.length === 1 ? [shape[0], 1] : [shape[1], shape[0]];
    const scale = MATRIX / Math.max(across, down), width = Math.max(across * scale, 36);
    const height = Math.max(down * scale, 30), own = blocks[parameter.block_of[rank]];
    const share = own.box[2] * own.box[3];
    this.facts.replaceChildren();
    make("b", {}, this.facts, parameter.notation);
    this.facts.append(`   ${shape.join(" × ")}`);
    make("div", {}, this.facts, `rank ${rank} owns ${+(100 * share).toPrecision(4)} %: `
      + amount(Math.round(share * parameter.elements), "").trim() + " elements");
    this.resize(matrix, width + 4, height + 4);
    matrix.setAttribute("aria-label", `${parameter.name} ${parameter.notation}: the block of rank ${rank}`);
    matrix.replaceChildren();
    for (const block of [...blocks.filter((b) => b !== own), own]) { // own last: no neighbour's edge hides it
      if (block.box[2] * block.box[3] > 0) this.drawBlock(block, block === own, width, height, parameter.axes);
    }
  }

  drawBlock({ box, ranks }, mine, width, height, axes) {
    const least = mine ? 3 : 0, [x, y] = [2 + box[0] * width, 2 + box[1] * height];
    const [w, h] = [Math.max(box[2] * width, least), Math.max(box[3] * height, least)];
    const key = this.scene.axes.find((a) => a.name === axes.at(-1))?.key;
    make("rect", { x, y, width: w, height: h, "data-owners": ranks.join(","), fill: "none",
      class: `s-fg ${mine ? `f-${key ?? "muted"}` : ""}` }, this.matrix);
    const words = ranks.join(",");
    if (h < 12 || w < 6.5 * words.length) return;
    make("text", { x: x + w / 2, y: y + h / 2 + 4, "text-anchor": "middle", "font-size": 11,
      class: `f-${mine ? (key ? `on-${key}` : "bg") : "muted"}` }, this.matrix, words);
  }

  choose(rank) {
    if (rank === this.chosen.rank) return;
    this.publish({ rank });
    const { groups } = this.scene.ranks[rank];
    this.live.textContent = `rank ${rank}: ` + Object.entries(groups).map(([a, g]) => `${a} with ${g.join(", ")}`).join("; ");
  }

  keys() {
    return { Home: () => this.choose(0), End: () => this.choose(this.scene.ranks.length - 1),
      ArrowRight: () => this.walk(1, 0), ArrowLeft: () => this.walk(-1, 0),
      ArrowDown: () => this.walk(0, 1), ArrowUp: () => this.walk(0, -1) };
  }

  /** To the nearest rank in a direction on the picture. */
  walk(right, down) {
    const { places } = this.scene, here = places[this.chosen.rank];
    let best = null;
    places.forEach((place, rank) => {
      const [dx, dy] = place.map((v, i) => v - here[i]);
      const ahead = dx * right + dy * down, aside = Math.abs(dx * down) + Math.abs(dy * right);
      if (ahead > 0 && (!best || ahead + 3 * aside < best[0])) best = [ahead + 3 * aside, rank];
    });
    if (best) this.choose(best[1]);
  }
}

export default rendered(MeshView, "mesh", ["rank", "parameter"]);
