// Elements from values. Text is always text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return an HTML element; attributes that are undefined, null or false are skipped, `on…` are listeners. */
export function h(tag, attributes, ...children) {
  return put(document.createElement(tag), attributes, children);
}

/** Return an SVG element, as `h` returns an HTML element. */
export function s(tag, attributes, ...children) {
  return put(document.createElementNS(SVG, tag), attributes, children);
}

/** Announce a sentence to screen readers. */
export function tell(sentence) {
  document.getElementById("told").textContent = sentence;
}

export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : undefined }, ...children);
}

let lastId = 0;

/** Return an id that no other element has. */
export function freshId(name) {
  lastId += 1;
  return `${name}-${lastId}`;
}

/** Return a labelled control; screen readers read `hint` with it. */
export function field(label, control, hint) {
  control.id ||= freshId("field");
  const parts = [h("label", { for: control.id }, label), control];
  if (hint) {
    const hintId = `${control.id}-hint`;
    control.setAttribute("aria-describedby", hintId);
    parts.push(h("p", { class: "hint", id: hintId }, hint));
  }
  return h("div", { class: "field" }, parts);
}

/** Return a table inside a scrolling region. */
export function table(caption, headings, rows) {
  const head = headings.map((heading) => {
    const numeric = heading.startsWith("#");
    return h("th", { scope: "col", class: numeric ? "number" : undefined }, numeric ? heading.slice(1) : heading);
  });
  const body = rows.map((row) =>
    h("tr", null, row.map((cell, column) => {
      const numeric = headings[column].startsWith("#");
      return h(column ? "td" : "th", { scope: column ? undefined : "row", class: numeric ? "number" : undefined }, cell);
    })),
  );
  const name = freshId("table");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": name },
    h("table", null, h("caption", { id: name }, caption), h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

/** Return a definition list; pairs without a value are skipped. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export function duration(ms) {
  if (ms === 0) return "0 ms";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit && count < 10 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

/** Name a pool or cascade of a plan for people. "tiny-heavy.1" is a further pool of one of the `models`;
 *  "noise:light>heavy#0" is a cascade of requests with that start, "noise:heavy~light" heavy alone with a stand-in. */
export function plainName(name, models = []) {
  const [, start, path] = /^(?:(noise|latent|image):)?(.*)$/s.exec(name);
  const pool = (one) => {
    const [, model, number] = /^(.*)\.(\d+)$/s.exec(one) ?? [];
    return models.includes(model) ? `${model}, pool ${Number(number) + 1}` : one;
  };
  const [way, standIn] = path.replace(/#\d+$/, "").split("~");
  const words = way.split(">").map(pool).join(" → ") + (standIn ? `, or ${pool(standIn)} if that would be late` : "");
  return start ? `${words} (from ${start === "noise" ? "noise" : `a cached ${start}`})` : words;
}
