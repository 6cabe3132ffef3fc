// Where pictures appear: what is under way, then what each became.

import { blobOf, events } from "./api.js";
import { h, notice, tell } from "./dom.js";
import { image, pictureView, savedSteps, StepTrack, verdict, why } from "./picture.js";
import { notePainted } from "./session.js";

const TYPES = { png: "image/png", jpeg: "image/jpeg", webp: "image/webp" };

// The form says it to readers of screens, beside its button.
const problem = (words, code) => notice("bad told", words, code ? h("span", { class: "hint" }, code) : null);

/** One picture while it is painted. */
class Watch {
  constructor(name) {
    this.track = new StepTrack(name);
    this.words = h("span", { class: "hint" }, "Asking …");
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

/** The pictures of one call: one of them large, several as a grid in which one is chosen. */
class Shown {
  /** `actionsOf` a finished picture are its buttons. */
  constructor(actionsOf) {
    this.actionsOf = actionsOf;
    this.element = h("div", { class: "stack" });
    this.spread(1);
  }

  spread(count) {
    this.count = count;
    this.done = new Map();
    this.open = new Map(Array.from({ length: count }, (_, index) => [index, new Watch(count > 1 ? `Picture ${index + 1}` : "")]));
    this.places = [...this.open.values()].map((watch) => h(count > 1 ? "li" : "div", null, watch.element));
    this.detail = h("div");
    this.element.replaceChildren(...(count > 1 ? [h("ol", { class: "several", "aria-label": "Pictures" }, this.places), this.detail] : this.places));
  }

  hear(event, data) {
    if (event === "accepted" && data.image_request_ids.length > 1) this.spread(data.image_request_ids.length);
    const watch = this.open.get(data.image_index ?? 0);
    if (event === "accepted") for (const one of this.open.values()) one.words.textContent = "Accepted";
    else if (event === "routed") watch?.routed(data.route);
    else if (event === "progress") watch?.progress(data);
    else if (event === "completed") this.finish(data);
    else if (event === "failed") this.fail(data.image_index, data.error);
  }

  finish({ request_id: requestId, image_index: index, format, image: bytes, provenance }) {
    notePainted(requestId);
    const blob = blobOf(bytes, TYPES[format]);
    const done = { provenance, blob, address: URL.createObjectURL(blob), format };
    this.done.set(index, done);
    this.leave(index);
    if (this.count === 1) this.element.replaceChildren(this.view(done));
    else {
      done.button = h("button", { type: "button", class: "pick", "aria-pressed": "false", onclick: () => this.choose(index) },
        h("span", { class: "frame small" }, image(done.address, `Picture ${index + 1}`)), verdict(provenance.route.start, true), h("span", { class: "hint" }, `seed ${provenance.spec.seed}`));
      this.places[index].replaceChildren(done.button);
      if (this.done.size === 1) this.choose(index);
    }
    tell(this.count === 1 ? "The picture is finished." : `${this.done.size} of ${this.count} pictures are finished.`);
  }

  view(done) { return pictureView(done.provenance, done.address, this.actionsOf(done)); }

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

  /** Lets go of the bytes of all: something else is shown in their place. */
  close() {
    for (const watch of this.open.values()) watch.close();
    for (const { address } of this.done.values()) URL.revokeObjectURL(address);
  }

  /** What is not there by now does not come. */
  end(error) {
    const stopped = error.name === "AbortError";
    tell(stopped ? "Stopped." : `It failed: ${error.message}`);
    for (const [index, watch] of [...this.open]) {
      watch.end(stopped ? notice("", "Stopped: the worker was freed.") : problem(error.message, error.code));
      this.leave(index);
    }
  }
}

/** An event of a call in few words. */
function newsOf(event, data, shown) {
  const of = shown.count > 1 ? `${shown.done.size} of ${shown.count} finished` : "";
  if (event === "accepted") return "Waiting for a worker";
  if (event === "completed") return of || "Finished";
  if (event === "progress") return of || `Step ${data.step} of ${data.step_count}`;
  return of || "Starting";
}

export class Stage {
  /** `onnews` is called with what happens in few words, `onfail` with an error that ends all or one of the pictures. */
  constructor(actionsOf, onnews, onfail) {
    this.actionsOf = actionsOf;
    this.onnews = onnews;
    this.onfail = onfail;
    this.element = h("section", { class: "stage", "aria-label": "Picture" },
      h("div", { class: "frame blank" }, h("p", { class: "hint" }, "What you ask for appears here while it is painted.")));
    this.controller = null;
    this.shown = null;
  }

  get busy() { return this.controller !== null; }

  stop() { this.controller?.abort(); }

  /** Resolves when all that was asked for is there, or does not come. */
  async paint(path, body) {
    this.controller = new AbortController();
    this.shown?.close();
    const shown = (this.shown = new Shown(this.actionsOf));
    this.element.replaceChildren(shown.element);
    try {
      this.onnews("Asking …");
      for await (const { event, data } of events(path, body, this.controller.signal)) {
        shown.hear(event, data);
        if (event === "failed") this.onfail(data.error);
        else this.onnews(newsOf(event, data, shown));
      }
      if (shown.open.size) throw new Error("the stream ended without a picture");
    } catch (error) {
      shown.end(error);
      if (error.name === "AbortError") this.onnews("Stopped");
      else this.onfail(error);
    } finally {
      this.controller = null;
    }
  }
}
