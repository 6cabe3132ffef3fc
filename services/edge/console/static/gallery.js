// The recent images of the caller's tenant, and the page of one of them with its provenance.

import { get, imageOf } from "./api.js";
import { deployment } from "./deployment.js";
import { h, notice } from "./dom.js";
import { download, image, imageView, provenanceLink } from "./image.js";
import { askAgain } from "./playground.js";
import { generated } from "./session.js";

const PAGE = 24;

/** Format a time; one of today without its date. */
function shortTime(when) {
  const today = when.toDateString() === new Date().toDateString();
  return when.toLocaleString(undefined, today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" });
}

/** Return a tile that loads its image once it is scrolled into view. */
function tile(request) {
  const frame = h("div", { class: "frame small" });
  const when = request.accepted_at_ms ? new Date(request.accepted_at_ms) : null;
  const words = when ? h("time", { datetime: when.toISOString(), title: when.toLocaleString() }, shortTime(when)) : h("span", null, "this session");
  const link = h("a", { class: "tile", href: `#/image/${request.request_id}` }, frame, words);
  const seen = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    seen.disconnect();
    imageOf(request.request_id).then(
      (address) => frame.replaceChildren(image(address, `Image of ${when ? when.toLocaleString() : "this session"}`)),
      (error) => frame.replaceChildren(h("span", { class: "hint" }, error.status === 404 ? "no longer stored" : error.message)),
    );
  }, { rootMargin: "200px" });
  seen.observe(link);
  return h("li", null, link);
}

export class Gallery {
  async open(main) {
    this.list = h("ul", { class: "tiles" });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.loadMore() }, "Earlier images");
    this.problem = h("div");
    main.append(h("h1", null, "Gallery"), this.list, this.problem, h("div", { class: "row actions" }, this.more));
    this.next = "";
    const { features } = await deployment();
    if (features.listing) await this.load();
    else this.add(generated().map((id) => ({ request_id: id })));
    if (!this.list.children.length) this.list.replaceWith(notice("", "There is no image yet. Generate one in the playground."));
  }

  /** Load the next page. An error appears below the list, and the button can be pressed again. */
  async loadMore() {
    this.more.disabled = true;
    this.problem.replaceChildren();
    try {
      await this.load();
    } catch (error) {
      this.problem.replaceChildren(notice("bad", error.message));
    }
    this.more.disabled = false;
  }

  async load() {
    const { requests, next_page_token: next } = await get(`requests?page_size=${PAGE}&page_token=${encodeURIComponent(this.next)}`);
    this.add(requests);
    this.next = next;
    this.more.hidden = !next;
  }

  add(requests) {
    this.list.append(...requests.map(tile));
  }
}

export class ImagePage {
  constructor(requestId) { this.requestId = requestId; }

  async open(main) {
    main.append(h("h1", null, "Image"));
    const [{ provenance, format }, address] = await Promise.all([get(`requests/${encodeURIComponent(this.requestId)}`), imageOf(this.requestId)]);
    const again = h("button", { type: "button", onclick: () => askAgain(provenance.spec) }, "Generate another");
    main.append(imageView(provenance, address, [again, download("Download", address, `${this.requestId}.${format}`), provenanceLink(provenance)]));
  }
}
