// Processes, pools, queues and the plan in force, as `pentimento status` shows them.

import { bytes, duration, facts, h, notice, percent, plainName, table } from "./dom.js";
import { watch, wrongToken } from "./looks.js";

const tileOf = (name, value, hint) => h("div", { class: "tile-figure" }, h("p", { class: "name" }, name), h("p", { class: "value" }, value), hint ? h("p", { class: "hint" }, hint) : null);

const counted = (count, one, many) => `${count ?? 0} ${Number(count) === 1 ? one : many}`;

// What images that were generated again for comparison took of the devices.
function shadowsLine(frontdoor) {
  const seconds = Number(frontdoor?.shadow_device_s ?? 0);
  return seconds ? `, ${percent(seconds / Math.max(Number(frontdoor.image_device_s ?? 0), seconds))} of the device seconds` : "";
}

function tiles({ frontdoor, cache }) {
  const shown = [];
  if (frontdoor) {
    const sum = (name) => (frontdoor.pools ?? []).reduce((total, pool) => total + Number(pool[name] ?? 0), 0);
    shown.push(tileOf("Waiting", sum("queued_count"), `${sum("running_count")} running`));
    shown.push(tileOf("Completed", frontdoor.completed_count ?? 0, `${frontdoor.accepted_count ?? 0} accepted`));
    shown.push(tileOf("Failed", frontdoor.failed_count ?? 0, `${frontdoor.rejected_count ?? 0} rejected, ${frontdoor.cancelled_count ?? 0} cancelled`));
    const workers = (frontdoor.workers ?? []).filter((worker) => worker.connected);
    shown.push(tileOf("Workers", workers.length, `${workers.reduce((total, worker) => total + Number(worker.in_flight_count ?? 0), 0)} requests on them`));
  }
  if (cache) {
    const lookups = Number(cache.lookup_count ?? 0);
    shown.push(tileOf("Cache", bytes(Number(cache.size_bytes ?? 0)), `${counted(cache.entry_count, "entry", "entries")}${cache.read_only ? ", read-only" : ""}`));
    shown.push(tileOf("Hits", lookups ? percent(Number(cache.hit_count ?? 0) / lookups) : "–", counted(lookups, "lookup", "lookups")));
    const earned = cache.earned ?? {};
    if (earned.row_count) shown.push(tileOf("Earned reuse", `${earned.open_count ?? 0} of ${earned.row_count}`, `${counted(earned.trial_count, "trial", "trials")} since a change${shadowsLine(frontdoor)}`));
    const predictor = cache.match_predictor ?? {};
    shown.push(tileOf("Match predictor", predictor.on ? "on" : "off", predictor.reason));
  }
  return h("div", { class: "figures" }, shown);
}

function meter(value, most, name) {
  return h("span", { class: "row" }, h("meter", { min: "0", max: String(most || 1), value: String(value), "aria-label": name }), `${value} of ${most}`);
}

const modelsOf = ({ fleet }) => fleet?.plan.assignments.map((one) => one.model) ?? [];

function pools({ frontdoor, fleet }) {
  const nameOf = (pool) => plainName(pool, modelsOf({ fleet }));
  const rows = (frontdoor?.pools ?? []).map((pool) => [
    nameOf(pool.pool), meter(Number(pool.queued_count ?? 0), Number(pool.queue_limit_count ?? 0), `queue of ${nameOf(pool.pool)}`),
    pool.running_count ?? 0, pool.arrived_count ?? 0, pool.completed_count ?? 0, pool.late_count ?? 0, pool.dropped_count ?? 0, pool.deferred_count ?? 0,
  ]);
  return rows.length ? table("Pools", ["pool", "queue", "#running", "#arrived", "#completed", "#late", "#dropped", "#deferred"], rows) : null;
}

function cells({ cells: found }) {
  const rows = Object.entries(found ?? {}).map(([name, cell]) => {
    const sum = (count) => (cell.pools ?? []).reduce((total, pool) => total + Number(pool[count] ?? 0), 0);
    return [name, sum("queued_count"), sum("running_count"), cell.accepted_count ?? 0, cell.completed_count ?? 0, cell.failed_count ?? 0, cell.not_accepting_reason || "–"];
  });
  return rows.length ? table("Cells", ["cell", "#waiting", "#running", "#accepted", "#completed", "#failed", "accepts none because"], rows) : null;
}

function state(replica) {
  if (!replica.live) return h("span", { class: "chip bad" }, `silent for ${Math.round(replica.last_report_age_ms / 1000)} s`);
  return replica.draining ? h("span", { class: "chip warn" }, "draining") : h("span", { class: "chip good" }, "up");
}

function replicas({ fleet }) {
  const sorted = [...(fleet?.replicas ?? [])].sort((one, other) => `${one.replica.kind} ${one.replica.instance_id}`.localeCompare(`${other.replica.kind} ${other.replica.instance_id}`));
  const rows = sorted.map((one) => [
    one.replica.instance_id, one.replica.kind.replaceAll("_", " "), state(one), one.replica.resident_models.join(", ") || "–", one.replica.device || "–",
    percent(one.busy_share), one.queue_length, one.running_count, one.completed_count, one.failed_count,
  ]);
  return rows.length ? table("Processes", ["process", "kind", "state", "resident", "device", "#busy", "#queue", "#running", "#done", "#failed"], rows) : null;
}

// The memory of each worker's weights, and the models that it cannot hold.
function weights({ fleet }) {
  const workers = (fleet?.replicas ?? []).map((one) => one.replica);
  const rows = workers.flatMap(({ instance_id: worker, weights: parts }) => parts.map((part) => [worker, part.component, part.precision, part.in_host_memory ? "host" : "device", bytes(part.size_bytes)]));
  const short = workers.flatMap(({ instance_id: worker, short_models: models }) => models.map((one) => `${one.model} on ${worker} (${bytes(one.needed_bytes)} of ${bytes(one.budget_bytes)})`));
  if (!rows.length && !short.length) return null;
  return h("section", { class: "stack" }, rows.length ? table("Weights", ["worker", "component", "precision", "memory", "#size"], rows) : null,
    short.length ? notice("warn", `Not enough memory: ${short.join(", ")}`) : null);
}

function steeredLine({ model, target_count: wanted, damped_count: damped, planned_count: planned }) {
  return `${model}: ${counted(wanted, "worker", "workers")} wanted, ${damped.toFixed(1)} after damping, ${planned} planned`;
}

// f(t) at the confidence at which scores differ most from the measured curve.
function deferralLine({ cascade, thresholds, shares, measured_shares: measured }) {
  const at = shares.reduce((worst, share, index) => (Math.abs(share - measured[index]) > Math.abs(shares[worst] - measured[worst]) ? index : worst), 0);
  return `${cascade}: ${percent(shares[at])} of images have a confidence up to ${thresholds[at].toFixed(2)}, ${percent(measured[at])} as measured`;
}

function plan({ fleet }) {
  if (!fleet) return null;
  const { plan: inForce } = fleet;
  const nameOf = (name) => plainName(name, modelsOf({ fleet }));
  const thresholds = inForce.cascades.flatMap((cascade) => cascade.stages.flatMap((stage) => stage.thresholds.map((one) => `${nameOf(stage.pool)}, from ${one.start || "anything"}: ${one.confidence.toFixed(2)}`)));
  return h("section", { class: "card" }, h("h2", null, "Plan in force"),
    facts([
      ["Version", `${inForce.version.leader_epoch}.${inForce.version.sequence}`],
      ["Made by", inForce.allocator || "–"],
      ["Admits", percent(inForce.admission_rate)],
      ["Pools", inForce.pools.map((pool) => `${nameOf(pool.pool)} (${counted(pool.worker_ids.length, "worker", "workers")})`).join("; ")],
      ["Monitor", fleet.steered ? steeredLine(fleet.steered) : null],
      ["Deferral", fleet.deferrals.map(deferralLine).join("; ")],
      ["SLO", fleet.slo_s ? duration(fleet.slo_s * 1000) : null],
      ["Cascades", inForce.cascades.map((cascade) => nameOf(cascade.cascade)).join(", ")],
      ["Thresholds", thresholds.join("; ")],
      ["LoRAs and ControlNets", inForce.placements.map((one) => `${one.adapter.name} (${one.instance_ids.length})`).join(", ")],
      ["Components", inForce.components.map((one) => `${one.component} (${one.instance_ids.length})`).join(", ")],
      ["Cache admits", inForce.cache.admits.join(", ") + (inForce.cache.admits_light ? "" : ", no light images")],
      ["Cache eviction", inForce.cache.eviction],
      ["Notes", inForce.notes.join("; ")],
    ]),
    inForce.assignments.length ? table("Assignments", ["worker", "model", "#batch"], inForce.assignments.map((one) => [one.worker_id, one.model, one.max_batch_size || "any"])) : null,
    fleet.unplanned.length ? notice("warn", `Not planned: ${fleet.unplanned.map((one) => `${one.model} (${one.reason})`).join(", ")}`) : null);
}

export class Fleet {
  async open(main) {
    this.place = h("div", { class: "stack" });
    main.append(h("h1", null, "Fleet"), this.place);
    this.watching = watch((status) => this.show(status), (error) => this.place.replaceChildren(notice("bad", wrongToken(error))));
    await this.watching.first;
  }

  close() { this.watching?.stop(); }

  show(status) {
    const failed = Object.entries(status.unanswered).map(([name, reason]) => notice("bad", `${name} does not answer: ${reason}`));
    // A redraw would take the focus from a table that is read by keyboard.
    if (this.place.contains(document.activeElement)) return;
    this.place.replaceChildren(...[...failed, tiles(status), cells(status), pools(status), replicas(status), weights(status), plan(status)].filter(Boolean));
  }
}
