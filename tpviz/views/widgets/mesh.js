/**
 * The mesh view: the scene made by figures/mesh.py as a grid of ranks and the blocks of one parameter.
 * The reader chooses a rank (click, arrow keys) and a parameter; the kernel hears of both.
 */
import { reserve } from "./room.js";
import { View, amount, make, rendered } from "./view.js";

const MATRIX = 220; // px of a parameter's longer side

class MeshView extends View {
  buildBody() {
    this.svg = make("svg", { tabindex: 0, role: "listbox", "aria-label": "ranks of the mesh" }, this.stage);
    this.side = make("div", { class: "tpv-side" }, this.rail);
    const label = make("label", {}, this.side, "parameter ");
    this.menu = make("select", { "aria-label": "parameter" }, label);
    this.menu.addEventListener("change", () => this.publish({ parameter: this.menu.value }));
    this.facts = make("div", {}, this.side);
    this.matrix = make("svg", { role: "img" }, make("div", { style: `min-height:${MATRIX}px` }, this.side));
    this.legend = make("div", { class: "tpv-legend" }, this.below);
    make("div", { class: "tpv-hint" }, this.below,
      "Click a rank, or use arrow keys (Shift: within a block), Home, End.");
    this.svg.addEventListener("keydown", (e) => this.onKey(e));
  }

  load() {
    this.scene = this.host.get("scene");
    this.menu.replaceChildren(...(this.scene.parameters ?? []).map((p) => make("option", { value: p.name }, null, p.name)));
    this.common = this.group(this.scene.common ?? "");
  }

  get size() { return this.scene.axes.reduce((product, { size }) => product * size, 1); }
  get chosen() { return Math.min(this.host.get("rank"), this.size - 1); }

  /** {axis: the ranks of a rank's group}, as `groups` in figures/mesh.py. */
  groups(rank) {
    const found = {};
    let stride = 1;
    for (const { name, size } of [...this.scene.axes].reverse()) {
      const first = rank - Math.floor(rank / stride) % size * stride, step = stride;
      found[name] = Array.from({ length: size }, (_, i) => first + i * step);
      stride *= size;
    }
    return found;
  }

  inWords(rank) { return Object.entries(this.groups(rank)).map(([a, all]) => `${a} group: ranks ${listed(all)}`); }

  draw() {
    const { scene, svg, chosen } = this;
    this.drawHead(scene);
    this.root.setAttribute("aria-label", `Mesh ${scene.title}`);
    this.resize(svg, scene.width, scene.height, scene.top);
    svg.style = `width:100%;height:auto;max-width:${scene.width}px`;
    reserve(this, (of) => Math.min(1, this.stage.clientWidth / of.width) * (of.height - of.top));
    svg.setAttribute("aria-activedescendant", `${this.uid}-${chosen}`);
    svg.replaceChildren(this.common);
    const { block, places, apart } = scene, mine = this.groups(chosen), first = chosen - chosen % block;
    for (const axis of scene.axes) this.drawGroup(axis, mine[axis.name], first);
    scene.ranks.forEach((here, i) => this.drawRank(here.rank, block, places[i], here, mine));
    apart.forEach((place, i) => this.drawRank(first + i, 1, place, {}, mine));
    this.drawLegend(scene.axes.map((axis) => [axis, `${axis.name}: ranks ${listed(mine[axis.name])}`]),
      `rank ${chosen} is at ${scene.axes.map(({ name }) => `${name} ${mine[name].indexOf(chosen)}`).join(", ")}; its groups:`);
    this.side.hidden = !scene.parameters.length;
    if (scene.parameters.length) this.drawMatrix(chosen);
  }

  /** A line through the members of the chosen rank's group: communication goes along it. */
  drawGroup({ key }, ranks, first) {
    const { cell, places, apart, block } = this.scene;
    const squares = [...new Set(ranks.map((rank) => Math.floor(rank / block)))];
    const inside = ranks.map((rank) => apart[rank - first]).filter(Boolean);
    for (const points of [squares.map((square) => places[square]), inside]) {
      const d = points.map(([x, y], i) => { // a line ends where the next rank is in another row
        const wraps = !i || (x < points[i - 1][0] && y > points[i - 1][1]);
        return `${wraps ? "M" : "L"}${x + cell / 2},${y + cell / 2}`;
      }).join("");
      make("path", { d, class: `s-${key}`, fill: "none", "stroke-width": 5, "stroke-opacity": .8 }, this.svg);
    }
  }

  /** A square: the rank, or the block of ranks that begins with it. */
  drawRank(rank, block, [x, y], { where = "", coords = [] }, groups) {
    const { chosen, scene: { cell: size, top, axes } } = this, within = (r) => r >= rank && r < rank + block;
    const mine = within(chosen), axis = mine ? undefined : axes.find((a) => groups[a.name].some(within));
    const name = block > 1 ? `ranks ${rank} to ${rank + block - 1}` : `rank ${rank}`, label = where && `: ${where}`;
    const group = make("g", { ...(mine && (block === 1 || !this.scene.apart.length) && { id: `${this.uid}-${chosen}` }),
      role: "option", "aria-selected": mine,
      "aria-label": `${name}${label}${axis ? `, in the ${axis.name} group of rank ${chosen}` : ""}`,
      "data-rank": rank, style: "cursor:pointer" }, this.svg);
    const box = (look) => make("rect", { x, y, width: size, height: size, rx: 7, ...look }, group);
    box({ class: mine ? "f-fg" : axis ? `f-${axis.key}` : "f-bg s-muted" });
    if (axis && axis.pattern !== "solid") box({ fill: this.tile(axis.pattern), class: "tpv-mark" });
    if (mine) make("rect", { x: x - 3.5, y: y - 3.5, width: size + 7, height: size + 7, rx: 10, class: "s-fg",
      fill: "none", "stroke-width": 2 }, group);
    const large = size > 40, text = (up, look, words) => make("text", { x: x + size / 2, y: y + up, ...look,
      "text-anchor": "middle", class: mine ? "f-bg" : axis ? `f-halo-${axis.key}` : "f-fg" }, group, words);
    text(size / 2 + (large ? -2 : 4), { "font-size": large ? 16 : 13, "font-weight": 700 }, rank);
    if (large) text(size / 2 + 13, { "font-size": 13 }, axes.length > 1 ? coords.join(",") : `${axes[0].name} ${rank}`);
    const to = rank + chosen % block; // the same place in another block
    group.addEventListener("click", () => { this.svg.focus({ preventScroll: true }); this.choose(to); });
    group.addEventListener("pointerenter", () => this.showTip(name, [where, block > 1 ? `of rank ${to}:` : "",
      ...this.inWords(to)], x + size, y + size - top));
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
    this.facts.replaceChildren(make("b", {}, null, parameter.notation), `   ${shape.join(" × ")}`);
    make("div", {}, this.facts, `rank ${rank} owns ${+(100 * share).toPrecision(4)} %: `
      + amount(Math.round(share * parameter.elements), "").trim() + " elements");
    this.resize(matrix, width + 4, height + 4);
    matrix.setAttribute("aria-label", `${parameter.name} ${parameter.notation}: the block of rank ${rank}`);
    matrix.replaceChildren();
    for (const block of [...blocks.filter((b) => b !== own), own]) { // own last: above its neighbours
      if (block.box[2] * block.box[3] > 0) this.drawBlock(block, block === own, width, height);
    }
  }

  drawBlock({ box, ranks }, mine, width, height) {
    const least = mine ? 3 : 0, [x, y] = [2 + box[0] * width, 2 + box[1] * height];
    const [w, h] = [Math.max(box[2] * width, least), Math.max(box[3] * height, least)];
    make("rect", { x, y, width: w, height: h, "data-owners": ranks.join(","), fill: "none",
      class: `s-fg ${mine ? "f-fg" : ""}` }, this.matrix);
    const words = ranks.join(",");
    if (h < 12 || w < 6.5 * words.length) return;
    make("text", { x: x + w / 2, y: y + h / 2 + 4, "text-anchor": "middle", "font-size": 13,
      class: `f-${mine ? "bg" : "muted"}` }, this.matrix, words);
  }

  choose(rank) {
    if (rank === this.chosen || rank < 0 || rank >= this.size) return;
    this.publish({ rank });
    this.live.textContent = `rank ${rank}; ${this.inWords(rank).join("; ")}`;
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
