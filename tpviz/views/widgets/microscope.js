/** The microscope: a film of buffers, in which messages travel. */
import { Film } from "./film.js";
import { rendered } from "./view.js";

class MicroscopeView extends Film {
  get said() { return this.scene.says?.[this.step] ?? ""; } // words are a line for each message: the picture has them
  get pace() { return 1.6; } // seconds a step
  get hint() { return "Point at a message for its bytes."; }
}

export default rendered(MicroscopeView, "microscope", ["step"]);
