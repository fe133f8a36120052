/** The view of a block: a film of its steps; click a rank to see the blocks as it does. */
import { Film } from "./film.js";
import { rendered } from "./view.js";

class BlocksView extends Film {
  get pace() { return 2.5; } // seconds a step: there is much to read
  get hint() { return "Click a layer to go there, a rank to see the blocks as it does."; }
}

export default rendered(BlocksView, "blocks", ["step"]);
