// The playground: ask, watch, see where it came from.

import { blobOf, events } from "./api.js";
import { deployment } from "./deployment.js";
import { h, notice, tell } from "./dom.js";
import { PaintForm } from "./form.js";
import { download, pictureView, provenanceLink, savedSteps, StepTrack, verdict, image } from "./picture.js";
import { notePainted } from "./session.js";

const LARGEST_SEED = 2 ** 32;
const TYPES = { png: "image/png", jpeg: "image/jpeg", webp: "image/webp" };

/** Where pictures appear: what is under way, then what it became. */
class Stage {
  constructor() {
    this.element = h("section", { class: "stage", "aria-label": "Picture" }, this.empty());
    this.controller = null;
  }

  empty() {
    return h("div", { class: "frame blank" }, h("p", { class: "hint" }, "What you ask for appears here while it is painted."));
  }

  get busy() { return this.controller !== null; }

  stop() { this.controller?.abort(); }

  /** Paints; resolves to {provenance, address} or null where it was stopped or failed. */
  async paint(path, body) {
    this.controller = new AbortController();
    const watch = new Watch();
    this.element.replaceChildren(watch.element);
    try {
      for await (const { event, data } of events(path, body, this.controller.signal)) {
        if (event === "completed") return this.finish(data);
        watch.show(event, data);
      }
      throw new Error("the stream ended without a picture");
    } catch (error) {
      this.fail(error, watch);
      return null;
    } finally {
      this.controller = null;
      watch.close();
    }
  }

  finish({ request_id: requestId, format, image: data, provenance }) {
    notePainted(requestId);
    tell("The picture is finished.");
    return { provenance, address: URL.createObjectURL(blobOf(data, TYPES[format])), format };
  }

  fail(error, watch) {
    const stopped = error.name === "AbortError";
    tell(stopped ? "Stopped." : `It failed: ${error.message}`);
    const words = stopped ? "Stopped: the worker was freed." : error.message;
    watch.element.replaceChildren(notice(stopped ? "" : "bad", words, error.code ? h("span", { class: "hint" }, error.code) : null));
  }
}

/** One request while it runs. */
class Watch {
  constructor() {
    this.track = new StepTrack();
    this.words = h("span", { class: "hint" }, "Asking …");
    this.verdict = h("span");
    this.frame = h("div", { class: "frame blank" }, h("p", { class: "hint" }, "Waiting for a worker"));
    this.element = h("div", { class: "watch" }, this.frame, this.track.element, h("div", { class: "row" }, this.verdict, this.words));
    this.saved = 0;
    this.preview = null;
  }

  show(event, data) {
    if (event === "accepted") this.words.textContent = "Accepted";
    else if (event === "routed") this.routed(data.route);
    else if (event === "progress") this.progress(data);
  }

  routed(route) {
    this.saved = savedSteps(route.start);
    this.verdict.replaceChildren(verdict(route.start));
    this.words.textContent = route.reason.replace(/^miss: /, "");
  }

  progress({ step, step_count: count, preview }) {
    this.track.show(step, count, this.saved);
    if (!preview) return;
    this.close();
    this.preview = URL.createObjectURL(blobOf(preview, "image/png"));
    const shown = image(this.preview, `Preview after step ${step}`);
    shown.dataset.preview = String(step);
    this.frame.classList.remove("blank");
    this.frame.replaceChildren(shown);
  }

  close() {
    if (this.preview) URL.revokeObjectURL(this.preview);
    this.preview = null;
  }
}

export class Playground {
  constructor() {
    this.stage = new Stage();
    this.last = null;
  }

  async open(main) {
    const known = await deployment();
    this.form = new PaintForm(known, (body) => this.paint(body), () => this.stage.stop());
    main.append(h("h1", null, "Playground"), h("div", { class: "split" }, this.form.element, this.stage.element));
    if (!known.models.length) this.stage.element.replaceChildren(notice("bad", "No worker holds a model yet."));
    const spec = takeAsked();
    if (spec) this.form.fill(spec);
  }

  /** Leaving the page ends what runs. */
  close() { this.stage.stop(); }

  async paint(body) {
    if (this.stage.busy) return;
    this.last = body;
    await this.run("generate", body);
  }

  async run(path, body) {
    this.form.busy = true;
    if (matchMedia("(max-width: 800px)").matches) this.stage.element.scrollIntoView({ block: "start" });
    const done = await this.stage.paint(path, body);
    this.form.busy = false;
    if (done) this.show(done);
  }

  show({ provenance, address, format }) {
    const actions = [
      h("button", { type: "button", onclick: () => this.vary() }, "Vary"),
      h("button", { type: "button", onclick: () => this.replay(provenance) }, "Replay"),
      download("Download", address, `${provenance.request_id}.${format}`),
      provenanceLink(provenance),
    ];
    this.stage.element.replaceChildren(pictureView(provenance, address, actions));
  }

  /** The same once more from another seed. */
  vary() {
    const seed = Math.floor(Math.random() * LARGEST_SEED);
    this.form.seed.value = seed;
    return this.paint({ ...this.last, seed });
  }

  /** The same bytes from the same start; what the request came with is sent again. */
  replay(provenance) {
    const inputs = [];
    if (this.last?.image) inputs.push({ field: "init_image.image", data: this.last.image });
    (this.last?.controlnets ?? []).forEach((net, index) => inputs.push({ field: `controlnets[${index}].conditioning_image`, data: net.conditioning_image }));
    return this.run("replay", { request_id: provenance.request_id, inputs, preview_every_steps: this.form.previewInterval });
  }
}

let asked = null;

/** Opens the playground with what a picture was painted with. */
export function askAgain(spec) {
  asked = spec;
  location.hash = "#/";
}

function takeAsked() {
  const spec = asked;
  asked = null;
  return spec;
}

