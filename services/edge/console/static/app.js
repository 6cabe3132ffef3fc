// Pages by the address after #, the theme, and signing in.

import { get, keepToken, token } from "./api.js";
import { deployment, forgetDeployment } from "./deployment.js";
import { field, h, notice } from "./dom.js";
import { ofAll } from "./kept.js";
import { Playground } from "./playground.js";

// What only some look at is loaded when they do. `role` is what a token must be for, `needs` a part of the deployment.
let playground = null;
const PAGES = [
  { path: "", title: "Playground", page: async () => (playground ??= new Playground()), role: "pictures" },
  { path: "gallery", title: "Gallery", page: async () => new (await import("./gallery.js")).Gallery(), role: "pictures" },
  { path: "cache", title: "Cache", page: async () => new (await import("./cache.js")).CacheBrowser(), role: "pictures", needs: "cache" },
  { path: "fleet", title: "Fleet", page: async () => new (await import("./fleet.js")).Fleet(), role: "suite" },
  { path: "charts", title: "Charts", page: async () => new (await import("./charts.js")).Charts(), role: "suite" },
];
const PICTURE = { path: "picture", title: "Picture", page: async (id) => new (await import("./gallery.js")).PicturePage(id) };

const main = document.getElementById("main");
let current = null;
let shown = 0;

function place() {
  const [path, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = path === PICTURE.path ? PICTURE : PAGES.find((page) => page.path === path) ?? PAGES[0];
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
    // Only now: what another call has opened meanwhile is what the next one closes.
    current = page;
    await page.open(inside);
  } catch (error) {
    if (number !== shown) return;
    inside.append(h("h1", null, found.title), notice("bad", error.message));
  }
  // Tests, and nobody else, wait for it.
  if (number === shown) main.dataset.ready = found.path || "playground";
}

function navigate() {
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

async function listPages(access) {
  let features = {};
  if (access.pictures) {
    try { ({ features } = await deployment()); } catch { /* The page itself says what is wrong. */ }
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

/** A dialog for the token; it stays in this tab and is gone with it. */
function signIn(why) {
  if (document.querySelector("dialog[open]")) return;
  const input = h("input", { type: "password", autocomplete: "off", required: true });
  const dialog = h("dialog", { "aria-labelledby": "sign-in-title" });
  const used = (value) => {
    keepToken(value);
    dialog.close();
    forgetDeployment();
    playground?.end();
    playground = null;
    start();
  };
  dialog.append(h("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); used(input.value.trim()); } },
    h("h2", { id: "sign-in-title" }, "Sign in"), why ? h("p", null, why) : null,
    field("Token", input, "It stays in this tab, and is sent to this deployment alone. Fleet and charts need an operator's."),
    h("div", { class: "row actions" },
      h("button", { type: "submit", class: "main" }, "Use it"),
      token() ? h("button", { type: "button", onclick: () => used("") }, "Sign out") : null,
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function start() {
  const button = document.getElementById("sign-in");
  const access = await get("access").catch(() => ({ tokens: false, pictures: true }));
  button.hidden = !access.tokens;
  button.textContent = token() ? "Signed in" : "Sign in";
  await Promise.all([listPages(access), show()]);
}

document.getElementById("sign-in").addEventListener("click", () => signIn(""));
window.addEventListener("pentimento:sign-in", () =>
  signIn(token() ? "This deployment does not know the token that was given." : "This deployment asks for a token."));
window.addEventListener("hashchange", navigate);
followTheme();
start();
