// The playground's form: the fields that the deployment's models take, and the request made from them.

import { base64Of } from "./api.js";
import { adaptersFor } from "./deployment.js";
import { field, freshId, h, notice } from "./dom.js";
import { MaskEditor } from "./mask.js";

const CACHE_CHOICES = [
  ["", "Read and write"],
  ["read", "Read only"],
  ["off", "Off"],
  ["shared", "Read and write, with the shared pool"],
];

const SYNTAXES = [
  ["", "None: plain text"],
  ["a1111", "a1111: (word:1.2)"],
  ["compel", "compel: (word)1.2"],
];

const number = (attributes) => h("input", { type: "number", inputmode: "decimal", ...attributes });
const MAX_IMAGES = 10;
const FAULTS = ["badInput", "customError", "patternMismatch", "rangeOverflow", "rangeUnderflow", "tooLong", "tooShort", "typeMismatch", "valueMissing"];

/** Return whether a control's value is invalid. Fractions may lie between the steps of its arrows. */
const isWrong = ({ step, validity }) => FAULTS.some((fault) => validity[fault]) || (validity.stepMismatch && !String(step).includes("."));

// Kinds of conditions of a ControlNet-Union, in their order: a network takes the first ones.
const KINDS = ["pose", "depth", "scribble", "lines", "normals", "segments", "tile", "repaint"];
const option = ([value, label]) => h("option", { value }, label);

/** A field for an image file, with a thumbnail. */
class ImageField {
  constructor(label, hint) {
    this.input = h("input", { type: "file", accept: "image/png,image/jpeg,image/webp", onchange: () => this.show() });
    this.thumb = h("img", { class: "thumb", alt: "", hidden: true });
    this.clear = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.drop() }, "Remove");
    this.element = field(label, this.input, hint);
    this.element.append(h("div", { class: "row" }, this.thumb, this.clear));
    this.onchange = () => {};
  }

  get file() { return this.input.files[0]; }

  drop() {
    this.input.value = "";
    this.show();
  }

  show() {
    URL.revokeObjectURL(this.thumb.src);
    this.thumb.hidden = this.clear.hidden = !this.file;
    if (this.file) this.thumb.src = URL.createObjectURL(this.file);
    this.onchange();
  }
}

/** Return the widest limits of several models, for a request without a model; null without models. Schedulers and
 *  adapters need a chosen model. */
function anyOf(models) {
  if (models.length < 2) return models[0] ?? null;
  const of = (name) => models.map((model) => model[name]);
  const common = (name) => (new Set(of(name)).size === 1 ? models[0][name] : "");
  return {
    family: null, schedulers: [], max_steps: Math.max(...of("max_steps")), max_size_px: Math.max(...of("max_size_px")), size_multiple_px: Math.min(...of("size_multiple_px")),
    ...Object.fromEntries(["default_steps", "default_guidance_scale", "default_width_px", "default_height_px"].map((name) => [name, common(name)])),
  };
}

export class GenerateForm {
  /** `known`: the deployment; `ongenerate` is called with the form's request. */
  constructor(known, ongenerate, onstop) {
    this.known = known;
    this.ongenerate = ongenerate;
    this.prompt = h("textarea", { rows: "3", required: true, dir: "auto", spellcheck: "true", placeholder: "a red circle left of a blue square" });
    this.negative = h("input", { type: "text", dir: "auto" });
    this.model = h("select", { onchange: () => this.follow() }, this.models());
    this.count = number({ min: "1", max: String(MAX_IMAGES), step: "1", value: "1" });
    this.seed = number({ min: "0", step: "1", placeholder: "random" });
    this.steps = number({ min: "1", step: "1" });
    this.guidance = number({ min: "0", step: "0.1" });
    this.scheduler = h("select");
    this.syntax = h("select", null, SYNTAXES.map(option));
    this.width = number({ "aria-label": "Width in pixels" });
    this.height = number({ "aria-label": "Height in pixels" });
    this.cache = h("select", null, CACHE_CHOICES.map(option));
    this.previews = h("select", null, [["", "a few"], ["1", "every step"], ["0", "none"]].map(option));
    this.image = new ImageField("Start from an image", "PNG, JPEG or WebP; the new image keeps its composition.");
    this.strength = number({ min: "0", max: "1", step: "0.05", value: "0.8" });
    this.strengthField = field("Strength", this.strength, "0 keeps the image, 1 generates an unrelated one.");
    this.strengthField.hidden = true;
    this.mask = new MaskEditor();
    this.image.onchange = () => {
      this.strengthField.hidden = !this.image.file;
      this.mask.show(this.image.file);
    };
    this.adapters = h("div");
    this.problem = h("div");
    this.news = h("span", { class: "hint news" }, "Ctrl + Enter");
    this.go = h("button", { type: "submit", class: "main" }, "Generate");
    this.stop = h("button", { type: "button", class: "stop", hidden: true, onclick: onstop }, "Stop");
    this.element = this.build();
    this.model.value = this.usual();
    this.follow();
  }

  /** Update the choices to the deployment's present models: workers come and go. */
  know(known) {
    if (known === this.known) return;
    const before = this.model.value;
    const offered = JSON.stringify(this.known.adapters);
    this.known = known;
    this.model.replaceChildren(...this.models());
    this.model.value = known.models.some((model) => model.name === before) ? before : this.usual();
    // The choices stay if the offer did not change.
    if (this.model.value !== before || !this.followed || JSON.stringify(known.adapters) !== offered) this.follow();
  }

  models() {
    const { models } = this.known;
    return [option(["", "Suite's choice"]), ...models.map((model) => h("option", { value: model.name, disabled: !model.ready_worker_count }, model.name + (model.ready_worker_count ? "" : " (no worker holds it)")))];
  }

  /** Return the initially chosen model: the only one. With several models none, so that the suite may defer. */
  usual() {
    const { models } = this.known;
    return models.length === 1 ? models[0].name : "";
  }

  build() {
    const size = h("fieldset", { class: "field" }, h("legend", null, "Size"), h("div", { class: "row" }, this.width, h("span", { "aria-hidden": "true" }, "×"), this.height));
    this.more = h("details", null, h("summary", null, "More"),
      h("div", { class: "more" },
        field("Negative prompt", this.negative), field("Prompt syntax", this.syntax), size,
        h("div", { class: "pair" }, field("Scheduler", this.scheduler), field("Previews", this.previews)),
        this.image.element, this.strengthField, this.mask.element));
    const form = h("form", { class: "generate", "aria-label": "Request", novalidate: true, onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      field("Prompt", this.prompt),
      h("div", { class: "pair" }, field("Model", this.model), field("Images", this.count)),
      h("div", { class: "triple" }, field("Seed", this.seed), field("Steps", this.steps), field("Guidance scale", this.guidance)),
      this.known.features.cache && field("Cache", this.cache),
      this.adapters,
      this.more,
      h("div", { class: "actions" }, this.problem, h("div", { class: "row" }, this.go, this.stop, this.news)));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
    });
    return form;
  }

  get chosen() {
    return this.known.models.find((model) => model.name === this.model.value) ?? anyOf(this.known.models);
  }

  /** Show the defaults and limits of the chosen model. */
  follow() {
    const model = this.chosen;
    this.followed = Boolean(model);
    if (!model) return;
    Object.assign(this.steps, { placeholder: model.default_steps, max: model.max_steps });
    Object.assign(this.guidance, { placeholder: model.default_guidance_scale });
    for (const [side, usual] of [[this.width, model.default_width_px], [this.height, model.default_height_px]]) {
      Object.assign(side, { placeholder: usual, min: model.size_multiple_px, max: model.max_size_px, step: model.size_multiple_px });
    }
    this.scheduler.replaceChildren(option(["", "the model's default"]), ...model.schedulers.map((name) => option([name, name])));
    this.offerAdapters(model);
  }

  offerAdapters(model) {
    this.loras = adaptersFor(this.known, model, "lora").map((adapter) => {
      const on = h("input", { type: "checkbox", id: freshId("lora") });
      const weight = number({ value: "1", step: "0.1", min: "-4", max: "4", "aria-label": `Weight of ${adapter.name}` });
      return { name: adapter.name, on, weight, element: h("div", { class: "row lora" }, on, h("label", { for: on.id }, adapter.name), weight) };
    });
    const nets = adaptersFor(this.known, model, "controlnet");
    this.net = h("select", null, option(["", "none"]), nets.map((adapter) => option([adapter.name, adapter.name])));
    this.netImage = new ImageField("Conditioning image", "It has the size of the generated image.");
    this.netScale = number({ value: "1", step: "0.1", min: "0.1" });
    this.preprocessor = h("select", null, [["", "none: the image is the condition"], ["edges", "edges"], ["depth", "depth"]].map(option));
    this.kind = h("select");
    const kindField = field("Kind of condition", this.kind);
    const netMore = h("div", { hidden: true }, this.netImage.element, field("Preprocessor", this.preprocessor), kindField, field("Conditioning scale", this.netScale));
    this.net.addEventListener("change", () => {
      const kinds = KINDS.slice(0, nets.find((one) => one.name === this.net.value)?.control_kind_count ?? 0);
      this.kind.replaceChildren(...kinds.map((kind) => option([kind, kind])));
      kindField.hidden = !kinds.length;
      netMore.hidden = !this.net.value;
      // Without a conditioning image the request would run as if no ControlNet had been chosen.
      this.netImage.input.required = Boolean(this.net.value);
    });
    this.adapters.replaceChildren(...[
      this.loras.length && h("fieldset", { class: "field" }, h("legend", null, "LoRAs"), this.loras.map((lora) => lora.element)),
      nets.length && h("div", null, field("ControlNet", this.net), netMore),
    ].filter(Boolean));
  }

  get previewInterval() {
    const steps = Number(this.steps.value || this.steps.placeholder || 25);
    return this.previews.value === "" ? Math.max(1, Math.floor(steps / 10)) : Number(this.previews.value);
  }

  async submit() {
    const wrong = [...this.element.elements].find((control) => control.willValidate && isWrong(control));
    if (wrong) {
      // A browser shows no message at a field inside closed details.
      this.more.open ||= this.more.contains(wrong);
      wrong.reportValidity();
      return;
    }
    this.problem.replaceChildren();
    let body;
    try {
      body = await this.request();
    } catch (error) {
      // Browsers refuse to read a file that changed after it was chosen.
      const unread = error instanceof DOMException && ["NotReadableError", "NotFoundError"].includes(error.name);
      this.fail(unread ? "An image file changed or was removed after it was chosen: choose it again." : error.message);
      return;
    }
    this.ongenerate(body);
  }

  /** Show an error next to the button. */
  fail(words, code = "") {
    this.problem.replaceChildren(notice("bad", words, code ? h("span", { class: "hint" }, code) : null));
    this.news.textContent = "";
  }

  /** Show the progress next to the button. */
  tell(words) { this.news.textContent = words; }

  async request() {
    const body = { prompt: this.prompt.value, preview_every_steps: this.previewInterval };
    if (this.model.value) body.model = this.model.value;
    if (Number(this.count.value) > 1) body.n = Number(this.count.value);
    if (this.negative.value) body.negative_prompt = this.negative.value;
    if (this.seed.value !== "") body.seed = this.seed.value;
    for (const [name, input] of [["num_inference_steps", this.steps], ["guidance_scale", this.guidance]]) {
      if (input.value !== "") body[name] = Number(input.value);
    }
    const [width, height] = [this.width, this.height].map((side) => side.value || side.placeholder);
    if (this.width.value || this.height.value) body.size = `${width || height}x${height || width}`;
    if (this.scheduler.value) body.scheduler = this.scheduler.value;
    if (this.syntax.value) body.prompt_syntax = this.syntax.value;
    if (this.cache.value) body.cache = this.cache.value;
    await this.addImages(body);
    return body;
  }

  async addImages(body) {
    if (this.image.file) Object.assign(body, { image: await base64Of(this.image.file), strength: Number(this.strength.value) });
    const mask = await this.mask.base64();
    if (mask) body.mask = mask;
    const loras = (this.loras ?? []).filter((lora) => lora.on.checked);
    if (loras.length) body.loras = loras.map((lora) => ({ name: lora.name, scale: Number(lora.weight.value) }));
    if (this.net?.value) {
      body.controlnets = [{ name: this.net.value, conditioning_image: await base64Of(this.netImage.file), conditioning_scale: Number(this.netScale.value), preprocessor: this.preprocessor.value, kind: this.kind.value }];
    }
  }

  /** Fill the fields with the request of a finished image. */
  fill(spec) {
    this.prompt.value = spec.prompt;
    this.negative.value = spec.negative_prompt;
    this.syntax.value = spec.prompt_syntax ?? "";
    this.model.value = spec.model;
    this.follow();
    Object.assign(this.steps, { value: spec.num_inference_steps });
    Object.assign(this.guidance, { value: spec.guidance_scale });
    Object.assign(this.width, { value: spec.width_px });
    Object.assign(this.height, { value: spec.height_px });
    Object.assign(this.seed, { value: spec.seed });
    // A scheduler that the model no longer has is skipped.
    this.scheduler.value = this.chosen?.schedulers.includes(spec.scheduler) ? spec.scheduler : "";
    for (const { name, on, weight } of this.loras ?? []) {
      const used = spec.loras.find((lora) => lora.name === name);
      on.checked = Boolean(used);
      weight.value = used?.scale ?? 1;
    }
    this.fillNet(spec.controlnets[0]);
    this.fillImage(spec.init_image);
  }

  /** Remove the chosen start image. The request's own one is not stored: the user chooses it again. */
  fillImage(used) {
    this.image.drop();
    this.problem.replaceChildren(...(used ? [notice("", "This image was generated from another one, which is not stored: choose it again.")] : []));
    if (!used) return;
    this.strength.value = used.strength;
    this.more.open = true;
  }

  /** Choose the request's ControlNet. Its conditioning image is not stored: the user chooses it again. */
  fillNet(used) {
    if (!this.net) return;
    const offered = used && [...this.net.options].some((one) => one.value === used.name);
    this.net.value = offered ? used.name : "";
    this.netScale.value = offered ? used.conditioning_scale : 1;
    this.preprocessor.value = (offered && used.preprocessor) || "";
    this.net.dispatchEvent(new Event("change"));
    this.kind.value = (offered && used.kind) || this.kind.value;
  }

  /** Use a file as the image to start from. */
  startFrom(file) {
    const taken = new DataTransfer();
    taken.items.add(file);
    this.image.input.files = taken.files;
    this.image.show();
    this.more.open = true;
    this.image.input.focus();
  }

  set busy(busy) {
    if (busy) this.problem.replaceChildren();
    this.go.disabled = busy;
    this.stop.hidden = !busy;
  }
}
