// The images of a call: first their progress, then their results.

import { blobOf, events } from "./api.js";
import { h, notice, tell } from "./dom.js";
import { image, imageView, savedSteps, StepTrack, verdict, why } from "./image.js";
import { noteGenerated } from "./session.js";

const TYPES = { png: "image/png", jpeg: "image/jpeg", webp: "image/webp" };

// Without the role of an alert: the form announces the same error to screen readers.
const problem = (words, code) => notice("bad told", words, code ? h("span", { class: "hint" }, code) : null);

/** One image while it is generated. */
class Watch {
  constructor(name) {
    this.track = new StepTrack(name);
    this.words = h("span", { class: "hint" }, "Sending …");
    this.verdict = h("span");
    this.frame = h("div", { class: "frame blank" }, h("p", { class: "hint" }, "Waiting for a worker"));
    this.element = h("div", { class: "watch" }, this.frame, this.track.element, h("div", { class: "row" }, this.verdict, this.words));
    this.name = name;
    this.saved = 0;
    this.preview = null;
  }

  routed(route) {
    this.saved = savedSteps(route.start);
    this.verdict.replaceChildren(verdict(route.start));
    this.words.textContent = why(route.reason);
  }

  progress({ step, step_count: count, preview }) {
    this.track.show(step, count, this.saved);
    if (!preview) return;
    this.close();
    this.preview = URL.createObjectURL(blobOf(preview, "image/png"));
    const shown = image(this.preview, `${this.name ? `${this.name}, preview` : "Preview"} after step ${step}`);
    shown.dataset.preview = String(step);
    this.frame.classList.remove("blank");
    this.frame.replaceChildren(shown);
  }

  end(message) { this.element.replaceChildren(message); }

  close() {
    if (this.preview) URL.revokeObjectURL(this.preview);
    this.preview = null;
  }
}

/** The images of one call: a single one large, several as a grid with one selected. */
class Shown {
  /** `actionsOf` returns the buttons of a finished image. */
  constructor(actionsOf) {
    this.actionsOf = actionsOf;
    this.element = h("div", { class: "stack" });
    this.spread(1);
  }

  spread(count) {
    this.count = count;
    this.done = new Map();
    this.open = new Map(Array.from({ length: count }, (_, index) => [index, new Watch(count > 1 ? `Image ${index + 1}` : "")]));
    this.places = [...this.open.values()].map((watch) => h(count > 1 ? "li" : "div", null, watch.element));
    this.detail = h("div");
    this.element.replaceChildren(...(count > 1 ? [h("ol", { class: "several", "aria-label": "Images" }, this.places), this.detail] : this.places));
  }

  handle(event, data) {
    if (event === "accepted" && data.image_request_ids.length > 1) this.spread(data.image_request_ids.length);
    const watch = this.open.get(data.image_index ?? 0);
    if (event === "accepted") for (const one of this.open.values()) one.words.textContent = "Accepted";
    else if (event === "routed") watch?.routed(data.route);
    else if (event === "progress") watch?.progress(data);
    else if (event === "completed") this.finish(data);
    else if (event === "failed") this.fail(data.image_index, data.error);
  }

  finish({ request_id: requestId, image_index: index, format, image: bytes, provenance }) {
    noteGenerated(requestId);
    const blob = blobOf(bytes, TYPES[format]);
    const done = { provenance, blob, address: URL.createObjectURL(blob), format };
    this.done.set(index, done);
    this.leave(index);
    if (this.count === 1) this.element.replaceChildren(this.view(done));
    else {
      done.button = h("button", { type: "button", class: "pick", "aria-pressed": "false", onclick: () => this.choose(index) },
        h("span", { class: "frame small" }, image(done.address, `Image ${index + 1}`)), verdict(provenance.route.start, true), h("span", { class: "hint" }, `seed ${provenance.spec.seed}`));
      this.places[index].replaceChildren(done.button);
      if (this.done.size === 1) this.choose(index);
    }
    tell(this.count === 1 ? "The image is finished." : `${this.done.size} of ${this.count} images are finished.`);
  }

  view(done) { return imageView(done.provenance, done.address, this.actionsOf(done)); }

  choose(index) {
    for (const [each, done] of this.done) done.button.setAttribute("aria-pressed", String(each === index));
    this.detail.replaceChildren(this.view(this.done.get(index)));
  }

  fail(index, error) {
    this.open.get(index)?.end(problem(error.message, error.code));
    this.leave(index);
  }

  leave(index) {
    this.open.get(index)?.close();
    this.open.delete(index);
  }

  /** Free the bytes of all images, before others take their place. */
  close() {
    for (const watch of this.open.values()) watch.close();
    for (const { address } of this.done.values()) URL.revokeObjectURL(address);
  }

  /** End the images that are not finished: they stopped or failed. */
  end(error) {
    const stopped = error.name === "AbortError";
    tell(stopped ? "Stopped." : `It failed: ${error.message}`);
    for (const [index, watch] of [...this.open]) {
      watch.end(stopped ? notice("", "Stopped: the worker was freed.") : problem(error.message, error.code));
      this.leave(index);
    }
  }
}

/** Describe an event of a call in a few words. */
function newsOf(event, data, shown) {
  const of = shown.count > 1 ? `${shown.done.size} of ${shown.count} finished` : "";
  if (event === "accepted") return "Waiting for a worker";
  if (event === "completed") return of || "Finished";
  if (event === "progress") return of || `Step ${data.step} of ${data.step_count}`;
  return of || "Starting";
}

export class Stage {
  /** `onnews` receives short status texts, `onfail` the error of the call or of one of its images. */
  constructor(actionsOf, onnews, onfail) {
    this.actionsOf = actionsOf;
    this.onnews = onnews;
    this.onfail = onfail;
    this.element = h("section", { class: "stage", "aria-label": "Image" },
      h("div", { class: "frame blank" }, h("p", { class: "hint" }, "The image appears here while it is generated.")));
    this.controller = null;
    this.shown = null;
  }

  get busy() { return this.controller !== null; }

  stop() { this.controller?.abort(); }

  /** Send a request; resolve once each of its images is finished or failed. */
  async run(path, body) {
    this.controller = new AbortController();
    this.shown?.close();
    const shown = (this.shown = new Shown(this.actionsOf));
    this.element.replaceChildren(shown.element);
    try {
      this.onnews("Sending …");
      for await (const { event, data } of events(path, body, this.controller.signal)) {
        shown.handle(event, data);
        if (event === "failed") this.onfail(data.error);
        else this.onnews(newsOf(event, data, shown));
      }
      if (shown.open.size) throw new Error("the stream ended before every image was finished");
    } catch (error) {
      shown.end(error);
      if (error.name === "AbortError") this.onnews("Stopped");
      else this.onfail(error);
    } finally {
      this.controller = null;
    }
  }
}
