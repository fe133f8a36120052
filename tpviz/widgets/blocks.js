/** The view of a block: every frame is a picture made in Python; click a tick for its step, a rank to look from it. */
import { Player } from "./player.js";

class BlocksView extends Player {
  get pace() { return 2.5; } // seconds a step: there is much to read

  get hint() { return "Click a step of the strip to go there, a rank to see the blocks as it does."; }

  buildBody() {
    super.buildBody();
    this.svg.addEventListener("click", ({ target }) => {
      const [tick, rank] = ["step", "rank"].map((name) => target.closest(`[data-${name}]`)?.dataset[name]);
      if (tick) this.go(Number(tick));
      if (rank) this.publish({ rank: Number(rank) });
    });
  }

  lastOf(scene) { return (scene.frames?.length ?? 1) - 1; }

  captionOf(step) { return this.scene.captions[step]; }

  wordsOf(step) { return [this.scene.words[step]]; }

  draw() {
    super.draw(34);
    const { scene, step, uid } = this; // ids of its own: another view of a block may be hidden
    this.svg.setAttribute("class", "tpv-page");
    this.svg.innerHTML = scene.style + (scene.common + scene.frames[step]).replaceAll("#tpv-", `#${uid}-`)
      .replaceAll("id='tpv-", `id='${uid}-`);
  }
}

export default {
  render({ model, el }) {
    const view = new BlocksView(model, el, "blocks", ["step"]);
    return () => view.destroy();
  },
};
