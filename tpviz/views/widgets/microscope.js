/** The microscope: a film of buffers, in which messages travel. */
import { film } from "./film.js";

export default film("microscope", 1.6, "Point at a message for what it carries.");
