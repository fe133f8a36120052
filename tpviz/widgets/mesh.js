/**
 * The mesh view: the scene made by figures/mesh.py as a grid of ranks and the blocks of one parameter.
 * The reader chooses a rank (click, arrow keys) and a parameter; the kernel hears of both.
 */
import { View, amount, make } from "./view.js";

const LEFT = 64, TOP = 40, MATRIX = 220, GAP = 36, SLICES = 4;

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
    this.cell = this.scene.ranks?.length > 32 ? 30 : 46;
  }

  get chosen() { return this.scene.ranks[Math.min(this.host.get("rank"), this.scene.ranks.length - 1)]; }

  place({ slice, row, column }) {
    const step = this.cell + 12, { columns, rows } = this.scene;
    return [LEFT + (slice % SLICES) * (columns * step + GAP) + column * step,
      TOP + Math.floor(slice / SLICES) * (rows * step + GAP) + row * step];
  }

  draw() {
    const { scene, svg } = this, { chosen } = this;
    [this.badge.textContent, this.title.textContent] = [scene.badge, scene.title];
    this.root.setAttribute("aria-label", `Mesh ${scene.title}`);
    const corners = scene.ranks.map((r) => this.place(r));
    svg.setAttribute("width", Math.max(...corners.map((c) => c[0])) + this.cell + 12);
    svg.setAttribute("height", Math.max(...corners.map((c) => c[1])) + this.cell + 12);
    svg.setAttribute("aria-activedescendant", `${this.uid}-${chosen.rank}`);
    svg.replaceChildren();
    this.drawDefs(svg, scene.patterns);
    this.drawCaptions();
    for (const axis of scene.axes) this.drawGroup(axis, chosen);
    for (const here of scene.ranks) this.drawRank(here, chosen);
    this.drawLegend(chosen);
    this.side.hidden = !scene.parameters.length;
    if (scene.parameters.length) this.drawMatrix(chosen.rank);
  }

  drawCaptions() {
    const { scene, svg } = this, text = (x, y, style, words, anchor = "start") => make("text", { x, y,
      "text-anchor": anchor, "font-size": 12, style }, svg, words);
    const bold = (axis) => `fill:var(--tpv-${axis.key});font-weight:700`;
    text(LEFT, 14, bold(scene.axes.at(-1)), `${scene.axes.at(-1).name} →`);
    if (scene.axes.length > 1) text(LEFT - 10, TOP + this.cell / 2 + 4, bold(scene.axes.at(-2)),
      `${scene.axes.at(-2).name} ↓`, "end");
    scene.slices.forEach((caption, slice) => {
      const [x, y] = this.place({ slice, row: 0, column: 0 });
      text(x, y - 8, "fill:var(--tpv-muted)", caption);
    });
  }

  /** A line through the members of the chosen rank's group: communication goes along it. */
  drawGroup(axis, chosen) {
    const middle = this.cell / 2;
    const points = chosen.groups[axis.name].map((r) => this.place(this.scene.ranks[r]).map((v) => v + middle));
    make("path", { d: `M${points.map((p) => p.join(",")).join("L")}`,
      style: `fill:none;stroke:var(--tpv-${axis.key});stroke-width:5;stroke-opacity:.8` }, this.svg);
  }

  drawRank(here, chosen) {
    const [x, y] = this.place(here), size = this.cell, mine = here.rank === chosen.rank;
    const axis = mine ? undefined : this.scene.axes.find((a) => chosen.groups[a.name].includes(here.rank));
    const where = Object.entries(here.coords).map(([name, i]) => `${name} ${i}`).join(", ");
    const group = make("g", { id: `${this.uid}-${here.rank}`, role: "option", "aria-selected": mine,
      "aria-label": `rank ${here.rank}: ${where}${axis ? `, in the ${axis.name} group of rank ${chosen.rank}` : ""}`,
      "data-rank": here.rank, style: "cursor:pointer" }, this.svg);
    const box = (style) => make("rect", { x, y, width: size, height: size, rx: 7, style }, group);
    box(mine ? "fill:var(--tpv-fg)" : axis ? `fill:var(--tpv-${axis.key})` : "fill:var(--tpv-bg);stroke:var(--tpv-muted)");
    if (axis && axis.pattern !== "solid") box(`fill:url(#${this.uid}-${axis.pattern})`);
    if (mine) make("rect", { x: x - 3.5, y: y - 3.5, width: size + 7, height: size + 7, rx: 10,
      style: "fill:none;stroke:var(--tpv-fg);stroke-width:2" }, group);
    const ink = mine ? "fill:var(--tpv-bg)" : axis ? `fill:var(--tpv-on-${axis.key});stroke:var(--tpv-${axis.key});`
      + "stroke-width:3;paint-order:stroke" : "fill:var(--tpv-fg)";
    const small = size > 40;
    make("text", { x: x + size / 2, y: y + size / 2 + (small ? -1 : 4), "text-anchor": "middle",
      "font-size": small ? 14 : 12, "font-weight": 700, style: ink }, group, here.rank);
    if (small) make("text", { x: x + size / 2, y: y + size - 9, "text-anchor": "middle", "font-size": 10, style: ink },
      group, axis ? axis.name : Object.values(here.coords).join(","));
    group.addEventListener("click", () => { this.svg.focus({ preventScroll: true }); this.choose(here.rank); });
    group.addEventListener("pointerenter", () => this.showTip(`rank ${here.rank}`, [where,
      ...Object.entries(here.groups).map(([name, ranks]) => `${name} group: ranks ${ranks.join(", ")}`)], x + size, y + size));
    group.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  drawLegend(chosen) {
    this.legend.replaceChildren(make("span", {}, null, `rank ${chosen.rank} and its groups:`));
    for (const axis of this.scene.axes) {
      const item = make("span", {}, this.legend), chip = make("svg", { width: 14, height: 13, "aria-hidden": "true" }, item);
      this.drawRun([[0, 14]], 1, 10, { ...axis, kind: "axis" }, chip);
      item.append(`${axis.name}: ranks ${chosen.groups[axis.name].join(", ")}`);
    }
  }

  drawMatrix(rank) {
    const { matrix, scene } = this;
    const parameter = scene.parameters.find((p) => p.name === this.host.get("parameter")) ?? scene.parameters[0];
    this.menu.value = parameter.name;
    const { shape, blocks } = parameter, [across, down] = shape.length === 1 ? [shape[0], 1] : [shape[1], shape[0]];
    const scale = MATRIX / Math.max(across, down), width = Math.max(across * scale, 36);
    const height = Math.max(down * scale, 30), box = blocks[parameter.block_of[rank]].box;
    const share = box[2] * box[3];
    this.facts.replaceChildren();
    make("b", {}, this.facts, parameter.notation);
    this.facts.append(`   ${shape.join(" × ")}`);
    make("div", {}, this.facts, `rank ${rank} owns ${+(100 * share).toPrecision(4)} %: `
      + amount(Math.round(share * parameter.elements), "").trim() + " elements");
    matrix.setAttribute("width", width + 4);
    matrix.setAttribute("height", height + 4);
    matrix.setAttribute("aria-label", `${parameter.name} ${parameter.notation}: the block of rank ${rank}`);
    matrix.replaceChildren();
    this.drawDefs(matrix, scene.patterns);
    const own = blocks[parameter.block_of[rank]]; // drawn last, so that no neighbour's edge hides it
    for (const block of [...blocks.filter((b) => b !== own), own]) {
      if (block.box[2] * block.box[3] > 0) this.drawBlock(block, block === own, width, height, parameter.axes);
    }
  }

  drawBlock({ box, ranks }, mine, width, height, axes) {
    const least = mine ? 3 : 0, [x, y] = [2 + box[0] * width, 2 + box[1] * height];
    const [w, h] = [Math.max(box[2] * width, least), Math.max(box[3] * height, least)];
    const key = this.scene.axes.find((a) => a.name === axes.at(-1))?.key;
    const fill = !mine ? "fill:none" : key ? `fill:var(--tpv-${key})` : "fill:var(--tpv-muted)";
    make("rect", { x, y, width: w, height: h, "data-owners": ranks.join(","), style: `${fill};stroke:var(--tpv-fg)` }, this.matrix);
    const words = ranks.join(",");
    if (h < 12 || w < 6.5 * words.length) return;
    make("text", { x: x + w / 2, y: y + h / 2 + 4, "text-anchor": "middle", "font-size": 10, style:
      `fill:var(--tpv-${mine ? (key ? `on-${key}` : "bg") : "muted"})` }, this.matrix, words);
  }

  choose(rank) {
    if (rank === this.chosen.rank) return;
    this.publish({ rank });
    const { groups } = this.scene.ranks[rank];
    this.live.textContent = `rank ${rank}: ` + Object.entries(groups).map(([a, g]) => `${a} with ${g.join(", ")}`).join("; ");
  }

  /** Arrows move to the nearest rank in that direction on the picture. */
  onKey(event) {
    const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    const jump = { Home: 0, End: this.scene.ranks.length - 1 }[event.key];
    if (!move && jump === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (jump !== undefined) { this.choose(jump); return; }
    const [x, y] = this.place(this.chosen);
    let best = null;
    for (const here of this.scene.ranks) {
      const [dx, dy] = this.place(here).map((v, i) => v - [x, y][i]);
      const ahead = dx * move[0] + dy * move[1], aside = Math.abs(dx * move[1]) + Math.abs(dy * move[0]);
      if (ahead > 0 && (!best || ahead + 3 * aside < best[0])) best = [ahead + 3 * aside, here.rank];
    }
    if (best) this.choose(best[1]);
  }
}

export default {
  render({ model, el }) {
    const view = new MeshView(model, el, "mesh", ["rank", "parameter"]);
    return () => view.destroy();
  },
};
