// The deployment's status, looked at again and again while somebody watches; earlier looks stay with the tab.

import { get } from "./api.js";

const EVERY_MS = 2000;
const KEY = "pentimento.looks";
const MOST = 450;

/** Looks as charts need them; see `sampleOf`. */
export const samples = load();

function load() {
  try { return JSON.parse(sessionStorage.getItem(KEY) ?? "[]"); } catch { return []; }
}

/** What charts need of a look: totals since the frontdoor's start, and the plan of now. */
function sampleOf(status, at) {
  const { frontdoor, fleet } = status;
  const workers = {};
  for (const assignment of fleet?.plan.assignments ?? []) workers[assignment.model] = (workers[assignment.model] ?? 0) + 1;
  const thresholds = {};
  for (const cascade of fleet?.plan.cascades ?? []) {
    for (const stage of cascade.stages) {
      const found = stage.thresholds.map((each) => each.confidence);
      if (found.length) thresholds[`${cascade.cascade} ${stage.pool}`] = Math.max(...found);
    }
  }
  const pools = (frontdoor?.pools ?? []).map((pool) => Object.fromEntries(Object.entries(pool).map(([name, value]) => [name, name === "pool" ? value : Number(value)])));
  const total = (name) => Number(frontdoor?.[name] ?? 0);
  return {
    at, epoch: `${frontdoor?.frontdoor_id} ${frontdoor?.frontdoor_epoch}`, workers, thresholds, pools,
    accepted: total("accepted_count"), completed: total("completed_count"), failed: total("failed_count"), rejected: total("rejected_count"),
    run: total("steps_run"), saved: total("steps_saved"),
    starts: (frontdoor?.starts ?? []).map((start) => [start.kind, Number(start.saved_steps ?? 0), Number(start.picture_count)]),
    latencies: (frontdoor?.latencies ?? []).map((bucket) => [bucket.upper_bound_s === "Infinity" ? Infinity : Number(bucket.upper_bound_s), Number(bucket.request_count ?? 0)]),
    admission: fleet?.plan.admission_rate ?? 1,
  };
}

function keep(sample) {
  const last = samples.at(-1);
  if (last && last.epoch !== sample.epoch) samples.length = 0;
  samples.push(sample);
  if (samples.length > MOST) samples.shift();
  try {
    sessionStorage.setItem(KEY, JSON.stringify(samples, (_, value) => (value === Infinity ? "Infinity" : value)));
  } catch { /* There is no room: the looks stay in memory. */ }
}

/** Calls `onstatus` or `onerror` now and every two seconds, until the returned function is called. */
export function watch(onstatus, onerror) {
  const controller = new AbortController();
  let timer = 0;
  async function look() {
    try {
      const status = await get("status", controller.signal);
      if (status.frontdoor) keep(sampleOf(status, Date.now()));
      onstatus(status);
    } catch (error) {
      if (controller.signal.aborted) return;
      onerror(error);
      if (error.status === 401 || error.status === 403) return;
    }
    if (!controller.signal.aborted) timer = setTimeout(look, document.hidden ? 5 * EVERY_MS : EVERY_MS);
  }
  const first = look();
  return { first, stop: () => { controller.abort(); clearTimeout(timer); } };
}

export function wrongToken(error) {
  return error.status === 403 ? "This page needs an operator's token." : error.message;
}
