// A finished picture and how it came to be.

import { pictureOf } from "./api.js";
import { duration, facts, h, percent } from "./dom.js";

const KINDS = { FromNoise: "noise", FromLatent: "latent", FromImage: "image" };

/** K, the steps that a start saves. */
export function savedSteps(start) {
  const retaken = start.retaken_steps || start.renoised_steps || 0;
  if (start.kind === "FromLatent") return start.resume_step - retaken;
  return start.kind === "FromImage" ? start.start_step - retaken : 0;
}

/** Hit or miss, in a word and its colour; where there is little room without the kind of start. */
export function verdict(start, brief = false) {
  const kind = KINDS[start.kind];
  if (kind === "noise") return h("span", { class: "chip miss" }, brief ? "Miss" : "Miss · from noise");
  return h("span", { class: "chip hit" }, `Hit · ${brief ? "" : `${kind}, `}K = ${savedSteps(start)}`);
}

/** Why it started there, without the word that its verdict says. */
export const why = (reason) => reason.replace(/^miss: /, "");

/** Which of a schedule's steps were saved, are done, are still to come. */
export class StepTrack {
  /** `name` says whose steps they are, where there are several. */
  constructor(name = "") {
    this.saved = h("span", { class: "saved" });
    this.done = h("span", { class: "done" });
    this.words = h("span", { class: "words" });
    this.bar = h("div", { class: "track", role: "progressbar", "aria-label": name ? `Denoising steps of ${name}` : "Denoising steps", "aria-valuemin": "0" }, this.saved, this.done);
    this.element = h("div", { class: "steps" }, this.bar, this.words);
  }

  /** `step` of `count` are done, `saved` of them by somebody else. */
  show(step, count, saved) {
    const painted = Math.max(step - saved, 0);
    this.saved.style.width = `${(saved / count) * 100}%`;
    this.done.style.width = `${(painted / count) * 100}%`;
    this.bar.setAttribute("aria-valuemax", count);
    this.bar.setAttribute("aria-valuenow", step);
    this.words.textContent = saved ? `step ${step} of ${count}, ${saved} saved` : `step ${step} of ${count}`;
  }
}

/** Stages as a waterfall; times are from the request's arrival. */
export function waterfall(timings) {
  const end = Math.max(...timings.map((timing) => timing.start_ms + timing.duration_ms), 0.001);
  const rows = timings.map((timing) => {
    const bar = h("span", { class: "span" });
    bar.style.marginLeft = `${Math.min((timing.start_ms / end) * 100, 99.2)}%`;
    bar.style.width = `${Math.max((timing.duration_ms / end) * 100, 0.4)}%`;
    return h("li", null, h("span", { class: "name" }, timing.stage), h("span", { class: "lane", "aria-hidden": "true" }, bar),
      h("span", { class: "time" }, duration(timing.duration_ms)));
  });
  return h("section", { class: "waterfall" }, h("h2", null, "Stages"), h("ol", null, rows));
}

function image(address, alt) {
  const element = h("img", { src: address, alt });
  // Tiny models paint tiny pictures: their pixels are shown as they are.
  element.addEventListener("load", () => element.classList.toggle("tiny", element.naturalWidth < 200));
  return element;
}

export { image };

/** A picture of another request, with a way to it. */
export function ancestorFigure(donor, words) {
  const place = h("div", { class: "frame small" }, h("span", { class: "hint" }, "…"));
  pictureOf(donor.request_id).then(
    (address) => place.replaceChildren(image(address, words)),
    (error) => place.replaceChildren(h("span", { class: "hint" }, error.status === 404 ? "not kept any more" : error.message)),
  );
  return h("a", { class: "ancestor", href: `#/picture/${donor.request_id}` },
    h("figure", null, place, h("figcaption", null, words, h("span", { class: "hint" }, `similarity ${donor.similarity.toFixed(3)}`))));
}

function cascadeWords(provenance) {
  const stages = provenance.route.stages.map((stage) => stage.model);
  if (stages.length < 2) return null;
  const confidence = provenance.discriminator_confidence;
  return `${stages.join(" → ")}, painted by ${provenance.spec.model}${confidence === null ? "" : `, confidence ${confidence.toFixed(2)}`}`;
}

/** What is known of it, as pairs. */
function provenanceFacts(provenance, size) {
  const { spec, route } = provenance;
  const { start } = route;
  return facts([
    ["Model", spec.model],
    ["Seed", spec.seed],
    ["Size", size ?? `${spec.width_px} × ${spec.height_px}`],
    ["Steps run", String(provenance.steps_run)],
    ["Steps saved", `${provenance.steps_saved} (${percent(provenance.steps_saved / Math.max(provenance.steps_saved + provenance.steps_run, 1))})`],
    ["K", start.kind === "FromNoise" ? null : String(savedSteps(start))],
    ["Similarity", start.donor?.similarity.toFixed(3)],
    ["Guidance", String(spec.guidance_scale)],
    ["Scheduler", spec.scheduler],
    ["Keep out", spec.negative_prompt && h("bdi", null, spec.negative_prompt)],
    ["LoRAs", spec.loras.map((lora) => `${lora.name} × ${lora.scale}`).join(", ")],
    ["ControlNets", spec.controlnets.map((net) => `${net.name} × ${net.conditioning_scale}`).join(", ")],
    ["Steps left out", route.thinned_steps.length ? `from step ${route.thinned_steps[0]} on` : null],
    ["Cascade", cascadeWords(provenance)],
    ["Device time", duration(provenance.device_seconds * 1000)],
    ["Energy", provenance.energy_joules === null ? null : `${provenance.energy_joules.toFixed(1)} J`],
    ["Worker", provenance.worker_id],
    ["Attempt", provenance.attempt_number > 1 ? String(provenance.attempt_number) : null],
    ["Replay", provenance.replay_equal === null ? null : provenance.replay_equal ? "the same bytes" : "other bytes"],
    ["Request", h("code", null, provenance.request_id)],
  ]);
}

/** The whole of it. `address` is the picture's own; `actions` are its buttons. */
export function pictureView(provenance, address, actions = []) {
  const { start } = provenance.route;
  const kind = KINDS[start.kind];
  const shown = h("figure", { class: "frame" }, image(address, provenance.spec.prompt));
  const ancestor = start.donor?.request_id && ancestorFigure(start.donor, kind === "latent" ? "Resumed from this one's latent" : "Painted over this one");
  const words = why(provenance.route.reason);
  return h("article", { class: "picture" },
    h("div", { class: "shown" }, shown, ancestor),
    h("div", { class: "row verdict" }, verdict(start), h("span", { class: "hint" }, words)),
    h("p", { class: "prompt", dir: "auto" }, provenance.spec.prompt),
    h("div", { class: "row actions" }, actions),
    provenance.notes.length ? h("ul", { class: "notes" }, provenance.notes.map((note) => h("li", null, note))) : null,
    provenanceFacts(provenance),
    provenance.timings.length ? waterfall(provenance.timings) : null);
}

/** A link that saves bytes of this page under a name. */
export function download(label, address, name) {
  return h("a", { class: "button", href: address, download: name }, label);
}

export function provenanceLink(provenance) {
  // The seed is a number there as everywhere else; here it is a text, for numbers of browsers are exact up to 2^53.
  const text = JSON.stringify(provenance, null, 1).replace(/^( *"seed": )"(\d+)"/m, "$1$2");
  return download("Provenance", `data:application/json,${encodeURIComponent(text)}`, `${provenance.request_id}.json`);
}
