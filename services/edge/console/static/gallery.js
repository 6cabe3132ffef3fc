// Recent pictures of the caller's tenant, and one of them with all that is known of it.

import { get, pictureOf } from "./api.js";
import { deployment } from "./deployment.js";
import { h, notice } from "./dom.js";
import { download, image, pictureView, provenanceLink } from "./picture.js";
import { askAgain } from "./playground.js";
import { painted } from "./session.js";

const PAGE = 24;

/** A time as short as it is told apart: of today without the day. */
function shortTime(when) {
  const today = when.toDateString() === new Date().toDateString();
  return when.toLocaleString(undefined, today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" });
}

/** A picture that is fetched once it comes into sight. */
function tile(request) {
  const frame = h("div", { class: "frame small" });
  const when = request.accepted_at_ms ? new Date(request.accepted_at_ms) : null;
  const words = when ? h("time", { datetime: when.toISOString(), title: when.toLocaleString() }, shortTime(when)) : h("span", null, "this session");
  const link = h("a", { class: "tile", href: `#/picture/${request.request_id}` }, frame, words);
  const seen = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    seen.disconnect();
    pictureOf(request.request_id).then(
      (address) => frame.replaceChildren(image(address, `Picture of ${when ? when.toLocaleString() : "this session"}`)),
      (error) => frame.replaceChildren(h("span", { class: "hint" }, error.status === 404 ? "not kept any more" : error.message)),
    );
  }, { rootMargin: "200px" });
  seen.observe(link);
  return h("li", null, link);
}

export class Gallery {
  async open(main) {
    this.list = h("ul", { class: "tiles" });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.loadMore() }, "Earlier ones");
    this.problem = h("div");
    main.append(h("h1", null, "Gallery"), this.list, this.problem, h("div", { class: "row actions" }, this.more));
    this.next = "";
    const { features } = await deployment();
    if (features.listing) await this.load();
    else this.add(painted().map((id) => ({ request_id: id })));
    if (!this.list.children.length) this.list.replaceWith(notice("", "There is no picture yet. The playground paints one."));
  }

  /** What goes wrong is told beside what there is, and may be tried again. */
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

export class PicturePage {
  constructor(requestId) { this.requestId = requestId; }

  async open(main) {
    main.append(h("h1", null, "Picture"));
    const [{ provenance, format }, address] = await Promise.all([get(`requests/${encodeURIComponent(this.requestId)}`), pictureOf(this.requestId)]);
    const again = h("button", { type: "button", onclick: () => askAgain(provenance.spec) }, "Paint another");
    main.append(pictureView(provenance, address, [again, download("Download", address, `${this.requestId}.${format}`), provenanceLink(provenance)]));
  }
}
