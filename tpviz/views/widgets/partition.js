/** The partition explorer: a film of a model's stages; click a piece for its stage. */
import { Film } from "./film.js";
import { rendered } from "./view.js";

class PartitionView extends Film {
  get pace() { return 3; } // seconds a stage
  get hint() { return "Click a stage, or one of its shards, for what it has and receives."; }
}

export default rendered(PartitionView, "partition", ["step"]);
