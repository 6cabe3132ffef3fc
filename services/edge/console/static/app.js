// Pages by the address after #, the theme, and signing in.

import { get, keepToken, token } from "./api.js";
import { deployment, forgetDeployment } from "./deployment.js";
import { field, h, notice } from "./dom.js";
import { ofAll } from "./kept.js";
import { Playground } from "./playground.js";

// Pages other than the playground load on demand. `role`: the access that a token must have; `needs`: a part of the
// deployment.
let playground = null;
const PAGES = [
  { path: "", title: "Playground", page: async () => (playground ??= new Playground()), role: "images" },
  { path: "gallery", title: "Gallery", page: async () => new (await import("./gallery.js")).Gallery(), role: "images" },
  { path: "cache", title: "Cache", page: async () => new (await import("./cache.js")).CacheBrowser(), role: "images", needs: "cache" },
  { path: "fleet", title: "Fleet", page: async () => new (await import("./fleet.js")).Fleet(), role: "suite" },
  { path: "charts", title: "Charts", page: async () => new (await import("./charts.js")).Charts(), role: "suite" },
];
const IMAGE = { path: "image", title: "Image", page: async (id) => new (await import("./gallery.js")).ImagePage(id) };

const main = document.getElementById("main");
let current = null;
let shown = 0;

function place() {
  const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = path === IMAGE.path ? IMAGE : PAGES.find((page) => page.path === path) ?? PAGES[0];
  return [found, rest.join("/")];
}

async function show() {
  const number = ++shown;
  current?.close?.();
  const [found, argument] = place();
  document.title = `${found.title} · Pentimento`;
  for (const link of document.querySelectorAll("#pages a")) {
    if (link.getAttribute("href") === `#/${found.path}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const inside = h("div", { class: `page page-${found.path || "playground"}` });
  main.replaceChildren(inside);
  main.removeAttribute("data-ready");
  try {
    const page = await found.page(argument);
    if (number !== shown) return;
    // Set only now: a page that another call opened in between must be the one that the next call closes.
    current = page;
    await page.open(inside);
  } catch (error) {
    if (number !== shown) return;
    inside.append(h("h1", null, found.title), notice("bad", error.message));
  }
  // Only tests wait for this attribute.
  if (number === shown) main.dataset.ready = found.path || "playground";
}

function navigate() {
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

async function listPages(access) {
  let features = {};
  if (access.images) {
    try { ({ features } = await deployment()); } catch { /* The page itself shows the error. */ }
  }
  const offered = PAGES.filter((page) => access[page.role] && (!page.needs || features[page.needs]));
  const here = place()[0].path;
  document.getElementById("pages").replaceChildren(...offered.map((page) =>
    h("li", null, h("a", { href: `#/${page.path}`, "aria-current": page.path === here ? "page" : undefined }, page.title))));
}

function followTheme() {
  const choice = document.getElementById("theme");
  choice.value = ofAll.getItem("pentimento.theme") ?? "auto";
  choice.addEventListener("change", () => {
    if (choice.value === "auto") {
      ofAll.removeItem("pentimento.theme");
      delete document.documentElement.dataset.theme;
    } else {
      ofAll.setItem("pentimento.theme", choice.value);
      document.documentElement.dataset.theme = choice.value;
    }
  });
}

/** Open a dialog for the token, which is stored only for this tab. */
function signIn(why) {
  if (document.querySelector("dialog[open]")) return;
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  const dialog = h("dialog", { "aria-labelledby": "sign-in-title" });
  const used = (value) => {
    keepToken(value);
    dialog.close();
    // The event "close" comes later, when an answer may already have opened the next dialog.
    dialog.remove();
    forgetDeployment();
    playground?.end();
    playground = null;
    start();
  };
  dialog.append(h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); used(input.value.trim()); } },
    h("h2", { id: "sign-in-title" }, "Sign in"), why ? h("p", null, why) : null,
    field("Token", input, "It is stored only for this tab and sent only to this deployment. Fleet and charts need an operator's token."),
    h("div", { class: "row actions" },
      h("button", { type: "submit", class: "main" }, "Use token"),
      token() ? h("button", { type: "button", onclick: () => used("") }, "Sign out") : null,
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function start() {
  const button = document.getElementById("sign-in");
  const access = await get("access").catch(() => ({ tokens: false, images: true }));
  button.hidden = !access.tokens;
  button.textContent = token() ? "Signed in" : "Sign in";
  await Promise.all([listPages(access), show()]);
}

document.getElementById("sign-in").addEventListener("click", () => signIn(""));
window.addEventListener("pentimento:sign-in", () =>
  signIn(token() ? "This deployment does not know the token." : "This deployment requires a token."));
window.addEventListener("hashchange", navigate);
followTheme();
start();
