// The region of an image to generate again, drawn on it by pointer or keys. It is stored as a list of strokes: undo draws
// them again without the last one.

import { base64Of } from "./api.js";
import { field, freshId, h, notice, percent, s, tell } from "./dom.js";

// Squares of two colours, which are visible on every image.
const COLOURS = ["#e8542b", "#ffffff"];
const SQUARES = 24;
const SAMPLE_PX = 64;
const MOST_STROKES = 500;
const KEYS = "Arrow keys move the brush, Space draws (hold it for a line), E erases, [ and ] change the size, Ctrl + Z undoes.";

/** Set the alpha of a mask's file: 255 at transparent pixels if it has any, else at light ones. */
function regionOf(pixels) {
  const { data } = pixels;
  let byAlpha = false;
  for (let at = 3; at < data.length && !byAlpha; at += 4) byAlpha = data[at] < 255;
  for (let at = 0; at < data.length; at += 4) {
    const light = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
    data[at + 3] = (byAlpha ? data[at + 3] < 128 : light >= 128) ? 255 : 0;
  }
  return pixels;
}

function canvasOf(width, height) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  return [canvas, canvas.getContext("2d")];
}

function chequered(pen) {
  const side = Math.max(Math.round(Math.min(pen.canvas.width, pen.canvas.height) / SQUARES), 1);
  const [tile, ink] = canvasOf(2 * side, 2 * side);
  [[0, 0, 0], [side, side, 0], [0, side, 1], [side, 0, 1]].forEach(([x, y, colour]) => {
    ink.fillStyle = COLOURS[colour];
    ink.fillRect(x, y, side, side);
  });
  return pen.createPattern(tile, "repeat");
}

const STROKES = {
  line(pen, { erase, size, points }, colour) {
    pen.globalCompositeOperation = erase ? "destination-out" : "source-over";
    Object.assign(pen, { strokeStyle: colour, fillStyle: colour, lineWidth: size, lineCap: "round", lineJoin: "round" });
    pen.beginPath();
    pen.arc(...points[0], size / 2, 0, 2 * Math.PI);
    pen.fill();
    pen.beginPath();
    pen.moveTo(...points[0]);
    for (const point of points.slice(1)) pen.lineTo(...point);
    pen.stroke();
  },
  clear(pen) { pen.clearRect(0, 0, pen.canvas.width, pen.canvas.height); },
  invert(pen, stroke, colour) {
    pen.globalCompositeOperation = "xor";
    pen.fillStyle = colour;
    pen.fillRect(0, 0, pen.canvas.width, pen.canvas.height);
  },
  file(pen, { drawn }, colour) {
    const { width, height } = pen.canvas;
    pen.globalCompositeOperation = "source-over";
    pen.clearRect(0, 0, width, height);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(drawn, 0, 0, width, height);
    pen.globalCompositeOperation = "source-in";
    pen.fillStyle = colour;
    pen.fillRect(0, 0, width, height);
  },
};

export class MaskEditor {
  constructor() {
    this.strokes = [];
    this.line = null;
    this.at = null;
    this.image = h("img", { alt: "" });
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Region to change" });
    this.pen = this.canvas.getContext("2d");
    this.ring = s("g", { class: "ring" }, s("circle", { class: "under" }), s("circle", { class: "over" }));
    this.overlay = s("svg", { "aria-hidden": "true" }, this.ring);
    this.size = h("input", { type: "range", min: "1", max: "60", value: "14", oninput: () => this.moveRing() });
    this.eraser = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggleEraser() }, "Erase");
    this.undoing = h("button", { type: "button", onclick: () => this.undo() }, "Undo");
    this.words = h("p", { class: "hint" });
    this.problem = h("div");
    this.file = h("input", { type: "file", accept: "image/png", onchange: () => this.load() });
    this.element = this.build();
    this.listen();
  }

  build() {
    const keys = h("p", { class: "hint", id: freshId("mask-keys") }, KEYS);
    this.canvas.setAttribute("aria-describedby", keys.id);
    const act = (name, kind) => h("button", { type: "button", onclick: () => this.add({ kind }) }, name);
    return h("fieldset", { class: "field mask", hidden: true }, h("legend", null, "Region to change"),
      h("div", { class: "easel" }, this.image, this.canvas, this.overlay), this.words,
      field("Brush", this.size),
      h("div", { class: "row" }, this.eraser, this.undoing, act("Clear", "clear"), act("Invert", "invert")),
      keys, field("Or a mask from a file", this.file, "PNG: white or transparent pixels change."), this.problem);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.begin(this.place(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      this.at = this.place(event);
      this.moveRing();
      if (!this.line || !event.buttons) return;
      const between = event.getCoalescedEvents?.() ?? [];
      for (const each of between.length ? between : [event]) this.extend(this.place(each));
    });
    for (const over of ["pointerup", "pointercancel", "blur"]) canvas.addEventListener(over, () => this.finish());
    canvas.addEventListener("pointerleave", () => this.ring.classList.toggle("away", document.activeElement !== canvas));
    canvas.addEventListener("focus", () => {
      this.at ??= [canvas.width / 2, canvas.height / 2];
      this.moveRing();
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("keyup", (event) => { if (event.key === " ") this.finish(); });
  }

  /** Show an image without a mask; hide the editor if there is none. */
  async show(file) {
    URL.revokeObjectURL(this.image.src);
    this.element.hidden = true;
    this.strokes = [];
    this.file.value = "";
    this.problem.replaceChildren();
    if (!file) return;
    try {
      this.image.src = URL.createObjectURL(file);
      await this.image.decode();
    } catch {
      return;
    }
    this.element.hidden = false;
    const [width, height] = [this.image.naturalWidth, this.image.naturalHeight];
    Object.assign(this.canvas, { width, height });
    this.overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.image.classList.toggle("tiny", width < 200);
    this.colour = chequered(this.pen);
    this.at = null;
    this.ring.classList.add("away");
    this.draw();
  }

  get brushPx() { return Math.max((Number(this.size.value) / 100) * Math.min(this.canvas.width, this.canvas.height), 1); }

  place(event) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    return [((event.clientX - left) / width) * this.canvas.width, ((event.clientY - top) / height) * this.canvas.height];
  }

  begin(point) {
    this.finish();
    this.at = point;
    this.line = { kind: "line", erase: this.eraser.getAttribute("aria-pressed") === "true", size: this.brushPx, points: [point] };
    STROKES.line(this.pen, this.line, this.colour);
    this.moveRing();
  }

  extend(point) {
    const last = this.line.points.at(-1);
    this.line.points.push(point);
    STROKES.line(this.pen, { ...this.line, points: [last, point] }, this.colour);
  }

  finish() {
    if (!this.line) return;
    const { line } = this;
    this.line = null;
    this.add(line);
  }

  add(stroke) {
    if (this.strokes.length >= MOST_STROKES) this.strokes = [{ kind: "file", drawn: this.copy() }];
    this.strokes.push(stroke);
    this.draw();
  }

  undo() {
    this.strokes.pop();
    this.draw();
  }

  copy() {
    const [canvas, pen] = canvasOf(this.canvas.width, this.canvas.height);
    pen.drawImage(this.canvas, 0, 0);
    return canvas;
  }

  draw() {
    STROKES.clear(this.pen);
    for (const stroke of this.strokes) STROKES[stroke.kind](this.pen, stroke, this.colour);
    this.undoing.disabled = !this.strokes.length;
    const share = this.share();
    this.words.textContent = share ? `${percent(share)} changes, the rest stays.` : "Nothing is marked: the whole image changes.";
    tell(this.words.textContent);
    this.moveRing();
  }

  /** Return the marked share of the image, by a sample. */
  share() {
    const [, pen] = canvasOf(SAMPLE_PX, SAMPLE_PX);
    pen.drawImage(this.canvas, 0, 0, SAMPLE_PX, SAMPLE_PX);
    const { data } = pen.getImageData(0, 0, SAMPLE_PX, SAMPLE_PX);
    let sum = 0;
    for (let at = 3; at < data.length; at += 4) sum += data[at];
    return sum / (255 * SAMPLE_PX * SAMPLE_PX);
  }

  toggleEraser() {
    this.eraser.setAttribute("aria-pressed", String(this.eraser.getAttribute("aria-pressed") !== "true"));
  }

  moveRing() {
    if (!this.at) return;
    this.ring.classList.remove("away");
    for (const circle of this.ring.children) {
      for (const [name, value] of [["cx", this.at[0]], ["cy", this.at[1]], ["r", this.brushPx / 2]]) circle.setAttribute(name, value);
    }
  }

  key(event) {
    const step = Math.max(this.brushPx / 4, 1);
    const move = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[event.key];
    if (move) this.go(move);
    else if (event.key === " ") { if (!event.repeat) this.begin(this.at); }
    else if (event.key === "e" || event.key === "E") this.toggleEraser();
    else if (event.key === "[" || event.key === "]") { this.size.value = Number(this.size.value) + (event.key === "]" ? 2 : -2); this.moveRing(); }
    else if (event.key === "z" && (event.ctrlKey || event.metaKey)) this.undo();
    else return;
    event.preventDefault();
  }

  go([x, y]) {
    const within = (value, most) => Math.min(Math.max(value, 0), most);
    this.at = [within(this.at[0] + x, this.canvas.width), within(this.at[1] + y, this.canvas.height)];
    if (this.line) this.extend(this.at);
    this.moveRing();
  }

  async load() {
    const [file] = this.file.files;
    if (!file) return;
    try {
      const bitmap = await createImageBitmap(file);
      const [drawn, pen] = canvasOf(bitmap.width, bitmap.height);
      pen.drawImage(bitmap, 0, 0);
      pen.putImageData(regionOf(pen.getImageData(0, 0, drawn.width, drawn.height)), 0, 0);
      this.problem.replaceChildren();
      this.add({ kind: "file", drawn });
    } catch {
      this.problem.replaceChildren(notice("bad", "This file is not an image."));
    }
  }

  /** Return the mask as PNG in base64, white in the region to change; "" if everything or nothing is marked. */
  async base64() {
    if (this.element.hidden || !this.strokes.length) return "";
    const { width, height } = this.canvas;
    const pixels = this.pen.getImageData(0, 0, width, height);
    let marked = 0;
    for (let at = 0; at < pixels.data.length; at += 4) {
      const white = pixels.data[at + 3] >= 128 ? 255 : 0;
      marked += white / 255;
      pixels.data.fill(white, at, at + 3);
      pixels.data[at + 3] = 255;
    }
    if (!marked || marked === width * height) return "";
    const [canvas, pen] = canvasOf(width, height);
    pen.putImageData(pixels, 0, 0);
    return base64Of(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
  }
}
