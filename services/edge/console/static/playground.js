// The playground: send a request, watch its steps, see the image's provenance.

import { deployment } from "./deployment.js";
import { h, notice } from "./dom.js";
import { GenerateForm } from "./form.js";
import { download, provenanceLink } from "./image.js";
import { Stage } from "./stage.js";

const LARGEST_SEED = 2 ** 32;

/** The form and the images of its requests. They stay while other pages are open: only closing the tab ends a running
 *  request. */
export class Playground {
  constructor() {
    this.stage = new Stage((done) => this.actions(done), (words) => this.form.tell(words), (error) => this.form.fail(error.message, error.code));
    this.form = null;
    this.last = null;
  }

  async open(main) {
    const known = await deployment();
    if (this.form) this.form.know(known);
    else this.form = new GenerateForm(known, (body) => this.generate(body), () => this.stage.stop());
    this.lacking ??= notice("bad", "No worker holds a model yet.");
    this.lacking.hidden = known.models.length > 0;
    main.append(h("h1", null, "Playground"), this.lacking, h("div", { class: "split" }, this.form.element, this.stage.element));
    const spec = takeAsked();
    if (spec) this.form.fill(spec);
  }

  /** Stop the running request: another user may sign in. */
  end() { this.stage.stop(); }

  async generate(body) {
    if (this.stage.busy) return;
    this.last = body;
    await this.run("generate", body);
  }

  async run(path, body) {
    if (this.stage.busy) return;
    this.form.busy = true;
    if (matchMedia("(max-width: 800px)").matches) this.stage.element.scrollIntoView({ block: "start" });
    await this.stage.run(path, body);
    this.form.busy = false;
  }

  actions({ provenance, address, blob, format }) {
    const name = `${provenance.request_id}.${format}`;
    return [
      h("button", { type: "button", onclick: () => this.vary() }, "Vary"),
      h("button", { type: "button", onclick: () => this.replay(provenance) }, "Replay"),
      h("button", { type: "button", onclick: () => this.form.startFrom(new File([blob], name, { type: blob.type })) }, "Edit"),
      download("Download", address, name),
      provenanceLink(provenance),
    ];
  }

  /** Generate again with another seed. */
  vary() {
    const seed = Math.floor(Math.random() * LARGEST_SEED);
    this.form.seed.value = seed;
    return this.generate({ ...this.last, seed });
  }

  /** Run the request again from the same start, for the same bytes. Its input images are sent again. */
  replay(provenance) {
    const inputs = [];
    if (this.last?.image) inputs.push({ field: "init_image.image", data: this.last.image });
    if (this.last?.mask) inputs.push({ field: "init_image.mask", data: this.last.mask });
    (this.last?.controlnets ?? []).forEach((net, index) => inputs.push({ field: `controlnets[${index}].conditioning_image`, data: net.conditioning_image }));
    return this.run("replay", { request_id: provenance.request_id, inputs, preview_every_steps: this.form.previewInterval });
  }
}

let asked = null;

/** Open the playground with an image's request. */
export function askAgain(spec) {
  asked = spec;
  location.hash = "#/";
}

function takeAsked() {
  const spec = asked;
  asked = null;
  return spec;
}
