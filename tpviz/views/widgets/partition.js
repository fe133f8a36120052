/** The partition explorer: a film of a model's stages; click a piece for its stage. */
import { film } from "./film.js";

export default film("partition", 3, "Click a stage, or one of its shards, for what it has and receives.");
