/**
 * A window on a time axis, for views that zoom: from `low` to `high`, of what is on the axis (`whole`), drawn from
 * `left` to `right` px.
 */
export const Zoomed = (Base) => class extends Base {
  get finest() { return 1e-5; } // of the whole, that a window has at least

  get here() { return this.head; }

  buildTools(tools) {
    super.buildTools(tools);
    for (const [sign, label, key] of [["+", "zoom in (+)", "+"], ["−", "zoom out (-)", "-"], ["all", "all of it (0)", 0]]) {
      this.button(this.more, sign, label, () => this.keys({})[key]());
    }
  }

  buildBody() {
    super.buildBody();
    this.svg.addEventListener("wheel", (e) => this.onWheel(e), { passive: false });
    this.svg.addEventListener("pointerdown", (e) => this.onDown(e));
  }

  /** px of a time, and the time at a px. */
  x(t) { return this.left + (t - this.low) / (this.high - this.low) * (this.right - this.left); }
  time(x) { return this.low + (x - this.left) / (this.right - this.left) * (this.high - this.low); }

  setWindow(low, high) {
    const [first, last] = this.whole, most = last - first;
    const span = Math.min(Math.max(high - low, most * this.finest), most);
    this.low = Math.min(Math.max(low, first), last - span);
    this.high = this.low + span;
    this.onChange();
  }

  /** Around the play-head, where that is in the window. */
  zoom(factor, center = this.here >= this.low && this.here <= this.high ? this.here : (this.low + this.high) / 2) {
    this.setWindow(center - (center - this.low) * factor, center + (this.high - center) * factor);
  }

  keys(event) {
    const span = this.high - this.low, pan = (by) => () => this.setWindow(this.low + by * span, this.high + by * span);
    return { ...super.keys(event), ...event.shiftKey && { ArrowRight: pan(0.2), ArrowLeft: pan(-0.2) },
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6),
      0: () => this.setWindow(...this.whole) };
  }

  onWheel(event) {
    if (document.activeElement !== this.svg && !event.ctrlKey) return;
    event.preventDefault();
    const by = event.deltaX / (this.right - this.left) * (this.high - this.low);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.setWindow(this.low + by, this.high + by);
    else this.zoom(Math.exp(Math.sign(event.deltaY) * 0.2), this.time(this.point(event).x));
  }

  onDown(event) {
    this.dragged = false;
    const { low, high } = this, scale = (high - low) / (this.right - this.left), { x } = this.point(event);
    const drag = new AbortController(); // listeners take its signal
    if (x < this.left || x > this.right || event.button) return;
    const move = (e) => {
      const by = this.point(e).x - x;
      this.dragged ||= Math.abs(by) > 4;
      if (this.dragged) this.setWindow(low - by * scale, high - by * scale);
    };
    addEventListener("pointermove", move, drag);
    addEventListener("pointerup", () => drag.abort(), drag);
  }
};
