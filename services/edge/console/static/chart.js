// Line charts as SVG: redrawn with every sample, read with the pointer or the arrow keys.

import { h, s } from "./dom.js";

const HEIGHT = 150;
const LEFT = 54;
// Pixels of a tick's character, and between the axis and its text.
const TICK_CHAR = 6.4;
const TICK_GAP = 10;
const BOTTOM = 20;
const COLOURS = 6;

/** Format a number at an axis, as short as possible. */
export function short(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1000) return String(value);
  const size = Math.abs(value);
  return size >= 1000 ? `${(value / 1000).toFixed(1)}k` : size >= 10 ? value.toFixed(0) : size >= 1 ? value.toFixed(1) : value.toFixed(2);
}

/** Round up to 1, 2 or 5 × 10ⁿ. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class LineChart {
  /** `format` writes a value; `top` is a fixed end of the axis; an axis of `whole` numbers has no halves. */
  constructor(title, { format = short, top = null, whole = false, hint = "" } = {}) {
    Object.assign(this, { title, format, top, whole, series: [], cursor: null, left: LEFT });
    this.svg = s("svg", { class: "plot", height: HEIGHT, role: "img", tabindex: "0" });
    this.legend = h("ul", { class: "legend" });
    this.element = h("figure", { class: "chart card" }, h("figcaption", null, h("h2", null, title), hint ? h("p", { class: "hint" }, hint) : null), this.svg, this.legend);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** `series`: [{name, points: [[ms, value or NaN], …]}], all at the same times. */
  update(series) {
    this.series = series.filter((one) => one.points.some(([, value]) => !Number.isNaN(value)));
    this.draw();
  }

  get times() { return this.series[0]?.points.map(([at]) => at) ?? []; }

  point(x) {
    const { times } = this;
    if (x === null || !times.length) this.cursor = null;
    else {
      const at = this.from + ((x - this.left) / Math.max(this.width - this.left, 1)) * (this.to - this.from);
      this.cursor = times.reduce((best, time, index) => (Math.abs(time - at) < Math.abs(times[best] - at) ? index : best), 0);
    }
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.times.length) return;
    event.preventDefault();
    this.cursor = Math.min(Math.max((this.cursor ?? this.times.length) + step, 0), this.times.length - 1);
    this.draw();
  }

  draw() {
    this.width = this.svg.clientWidth || 300;
    const values = this.series.flatMap((one) => one.points.map(([, value]) => value)).filter((value) => !Number.isNaN(value));
    const top = this.end(Math.max(...values, 0));
    // As wide as its longest text: "1 min 40 s" is longer than "50 %".
    this.left = Math.max(LEFT, ...[0, 0.5, 1].map((share) => this.format(top * share).length * TICK_CHAR + TICK_GAP));
    const { times } = this;
    this.from = times[0] ?? 0;
    this.to = Math.max(times.at(-1) ?? 1, this.from + 1);
    const x = (at) => this.left + ((at - this.from) / (this.to - this.from)) * (this.width - this.left - 4);
    const y = (value) => 8 + (1 - Math.min(value / top, 1)) * (HEIGHT - BOTTOM - 8);
    const grid = [0, 0.5, 1].map((share) => s("g", null,
      s("line", { class: "grid", x1: this.left, x2: this.width, y1: y(top * share), y2: y(top * share) }),
      s("text", { class: "tick", x: this.left - 6, y: y(top * share) + 4, "text-anchor": "end" }, this.format(top * share))));
    const lines = this.series.map((one, index) => s("path", { class: `line c${index % COLOURS}`, d: path(one.points, x, y) }));
    this.svg.replaceChildren(...grid, ...this.ends(x), ...lines, ...this.mark(x, y));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.tellValues();
  }

  /** Return the end of an axis that shows `most`. */
  end(most) {
    if (this.top !== null) return this.top;
    if (this.whole) return Math.max(2 * Math.ceil(most / 2), 2);
    return most > 0 ? roundUp(most) : 1;
  }

  ends(x) {
    if (this.times.length && this.cursor !== null) return [this.clock(x)];
    if (!this.times.length) return [s("text", { class: "tick", x: this.width / 2, y: HEIGHT / 2 - 14, "text-anchor": "middle" }, "nothing yet")];
    const seconds = Math.round((this.to - this.from) / 1000);
    const ago = seconds < 120 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
    return [s("text", { class: "tick", x: x(this.from), y: HEIGHT - 4 }, ago), s("text", { class: "tick", x: this.width - 4, y: HEIGHT - 4, "text-anchor": "end" }, "now")];
  }

  /** Return the label of the time at the cursor. */
  clock(x) {
    const at = this.times[Math.min(this.cursor, this.times.length - 1)];
    const words = new Date(at).toLocaleTimeString();
    const half = 32;
    return s("text", { class: "tick", x: Math.min(Math.max(x(at), this.left + half), this.width - half), y: HEIGHT - 4, "text-anchor": "middle" }, words);
  }

  mark(x, y) {
    if (this.cursor === null || !this.times.length) return [];
    const at = this.times[Math.min(this.cursor, this.times.length - 1)];
    const dots = this.series.map((one, index) => {
      const value = one.points[this.cursor]?.[1] ?? NaN;
      return Number.isNaN(value) ? null : s("circle", { class: `dot c${index % COLOURS}`, cx: x(at), cy: y(value), r: 3.5 });
    });
    return [s("line", { class: "cursor", x1: x(at), x2: x(at), y1: 0, y2: HEIGHT - BOTTOM }), ...dots.filter(Boolean)];
  }

  tellValues() {
    const words = this.series.map((one) => {
      const known = this.cursor === null ? one.points.filter(([, value]) => !Number.isNaN(value)).at(-1) : one.points[this.cursor];
      const value = known?.[1] ?? NaN;
      return [one.name, Number.isNaN(value) ? "–" : this.format(value)];
    });
    this.legend.replaceChildren(...words.map(([name, value], index) => h("li", null, h("span", { class: `swatch c${index % COLOURS}` }), name, h("b", null, value))));
    this.svg.setAttribute("aria-label", `${this.title}: ${words.map(([name, value]) => `${name} ${value}`).join(", ") || "nothing yet"}`);
  }
}

function path(points, x, y) {
  let drawn = "";
  let pen = false;
  for (const [at, value] of points) {
    if (Number.isNaN(value)) { pen = false; continue; }
    // A point between gaps is a dot: a line of no length, with round ends.
    drawn += `${pen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${pen ? "" : "h0"}`;
    pen = true;
  }
  return drawn;
}

/** Return counts by name as bars. `rows`: {name, value, words}. */
export function bars(title, hint, rows) {
  const most = Math.max(...rows.map((row) => row.value), 1);
  const drawn = rows.map((row) => {
    const bar = h("span", { class: `bar ${row.kind}` });
    bar.style.width = `${(row.value / most) * 100}%`;
    return h("li", null, h("span", { class: "name" }, row.name), h("span", { class: "lane", "aria-hidden": "true" }, bar), h("span", { class: "time" }, row.words));
  });
  return [h("figcaption", null, h("h2", null, title), h("p", { class: "hint" }, hint)), rows.length ? h("ol", { class: "bars" }, drawn) : h("p", { class: "hint" }, "nothing yet")];
}
