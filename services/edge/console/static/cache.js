// The cache's entries near a prompt, and the route that a request with it would get now.

import { imageOf, post } from "./api.js";
import { deployment } from "./deployment.js";
import { duration, facts, field, h, notice, percent, table, tell } from "./dom.js";
import { image, savedSteps, verdict, why } from "./image.js";

const NEIGHBOURS = 12;

function neighbour(found) {
  const frame = h("div", { class: "frame small" });
  const body = [frame, h("span", { class: "similarity" }, h("meter", { min: "0", max: "1", value: String(Math.max(found.similarity, 0)), "aria-label": "similarity" }), found.similarity.toFixed(3))];
  const steps = found.resume_steps.length ? `latents after ${found.resume_steps.join(", ")}` : "its image";
  body.push(h("span", { class: "hint" }, steps), found.ancestor_depth ? h("span", { class: "hint" }, found.ancestor_depth === 1 ? "1 ancestor" : `${found.ancestor_depth} ancestors`) : null);
  if (!found.request_id) {
    frame.append(h("span", { class: "hint" }, "another tenant's"));
    return h("li", null, h("div", { class: "tile" }, body));
  }
  imageOf(found.request_id).then(
    (address) => frame.replaceChildren(image(address, `Neighbour at similarity ${found.similarity.toFixed(3)}`)),
    (error) => frame.replaceChildren(h("span", { class: "hint" }, error.status === 404 ? "no longer stored" : error.message)),
  );
  return h("li", null, h("a", { class: "tile", href: `#/image/${found.request_id}` }, body));
}

function neighbours(title, found) {
  return h("section", null, h("h2", null, title), found.length ? h("ul", { class: "tiles" }, found.map(neighbour)) : h("p", { class: "hint" }, "none"));
}

function decision(explained) {
  const { route } = explained;
  return h("section", { class: "card" }, h("h2", null, "Route of a request now"),
    h("div", { class: "row verdict" }, verdict(route.start), h("span", { class: "hint" }, why(route.reason))),
    facts([
      ["Model", route.model],
      ["K", route.start.kind === "FromNoise" ? null : String(savedSteps(route.start))],
      ["Similarity", route.start.donor?.similarity.toFixed(3)],
      ["Pool", explained.pool],
      ["Expected wait", duration(explained.predicted_wait_ms)],
      ["Plan", `${explained.plan_version.leader_epoch}.${explained.plan_version.sequence} by ${explained.allocator || "no allocator"}`],
    ]),
    h("ul", { class: "notes" }, explained.reasons.map((reason) => h("li", null, reason))),
    explained.reuse_quality.length ? thresholds(explained.reuse_quality) : null);
}

function thresholds(rows) {
  const shown = rows.map((one) => [
    one.from_image ? "image" : "latent", percent(one.saved_share), similarity(one, one.similarity), similarity(one, one.profiled_similarity),
    one.achieved ? `${percent(one.achieved.kept_share)} of ${one.achieved.sample_count}` : "–",
    one.earned ? String(one.trial_count) : "–",
  ]);
  const columns = ["start", "#steps saved", "#from similarity", "#at first", "#quality kept", "#trials since"];
  return table("Similarity thresholds of the cache", columns, shown);
}

// A row whose reuse is earned allows nothing while its similarity is 1.
function similarity(row, value) {
  return row.earned && value >= 1 ? "none" : value.toFixed(3);
}

export class CacheBrowser {
  async open(main) {
    const known = await deployment();
    this.prompt = h("input", { type: "search", required: true, dir: "auto", placeholder: "a red circle left of a blue square" });
    this.model = h("select", null, known.models.map((model) => h("option", { value: model.name }, model.name)));
    this.steps = h("input", { type: "number", min: "1", placeholder: "default" });
    this.shared = h("input", { type: "checkbox", id: "shared-pool" });
    this.place = h("div", { class: "stack", "aria-live": "polite" });
    const form = h("form", { class: "search", "aria-label": "Lookup", onsubmit: (event) => { event.preventDefault(); this.look(); } },
      field("Prompt", this.prompt), field("Model", this.model), field("Steps", this.steps),
      h("div", { class: "row actions" }, h("button", { type: "submit", class: "main" }, "Look up"), h("span", { class: "row" }, this.shared, h("label", { for: "shared-pool" }, "shared pool too"))));
    main.append(h("h1", null, "Cache"), form, this.place);
  }

  async look() {
    const body = { prompt: this.prompt.value, model: this.model.value, cache: this.shared.checked ? "shared" : "read-write", neighbour_count: NEIGHBOURS };
    if (this.steps.value) body.num_inference_steps = Number(this.steps.value);
    try {
      const explained = await post("explain", body);
      const [byPrompt, byImage] = [false, true].map((wanted) => explained.neighbours.filter((one) => one.by_image === wanted));
      this.place.replaceChildren(decision(explained), neighbours("Nearest by prompt", byPrompt), ...(byImage.length ? [neighbours("Nearest by image", byImage)] : []));
      tell(`${byPrompt.length + byImage.length} neighbours`);
    } catch (error) {
      this.place.replaceChildren(notice("bad", error.message));
    }
  }
}

