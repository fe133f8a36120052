/** The view of a block: a film of its steps; click a rank to see the blocks as it does. */
import { film } from "./film.js";

export default film("blocks", 2.5, "Click a layer to go there, a rank to see the blocks as it does.");
