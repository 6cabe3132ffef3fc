// The deployment's status and its past, asked for again and again while somebody watches.

import { get } from "./api.js";

const EVERY_MS = 2000;
const MOST = 2000;

/** What charts are made of, oldest first; services/edge/history/samples.py says what each holds. */
export const samples = [];

const number = (bound) => (bound === "Infinity" ? Infinity : bound);

/** Nothing is told twice: samples of earlier than the last one are of a clock that went back, and take the place of what was later. */
function keep(found) {
  for (const sample of found) {
    while (samples.length && samples.at(-1).at >= sample.at) samples.pop();
    samples.push({ ...sample, latencies: sample.latencies.map(([bound, count]) => [number(bound), count]) });
  }
  if (samples.length > MOST) samples.splice(0, samples.length - MOST);
}

/** Calls `ask`, and again as many milliseconds after its answer as it resolves to, until stopped; errors go to `onerror`. */
function again(ask, onerror) {
  const controller = new AbortController();
  let timer = 0;
  async function once() {
    let wait = EVERY_MS;
    try {
      wait = await ask(controller.signal);
    } catch (error) {
      if (controller.signal.aborted) return;
      onerror(error);
      if (error.status === 401 || error.status === 403) return;
    }
    if (!controller.signal.aborted) timer = setTimeout(once, document.hidden ? 5 * wait : wait);
  }
  return { first: once(), stop: () => { controller.abort(); clearTimeout(timer); } };
}

/** Calls `onstatus` with the status of now and every two seconds. */
export function watch(onstatus, onerror) {
  return again(async (signal) => {
    onstatus(await get("status", signal));
    return EVERY_MS;
  }, onerror);
}

/** Calls `onsamples` whenever `samples` may have grown. The edge looks for all pages; each asks for what it has not. */
export function watchHistory(onsamples, onerror) {
  return again(async (signal) => {
    const { samples: found, interval_ms: wait } = await get(`history?after=${samples.at(-1)?.at ?? 0}`, signal);
    keep(found);
    onsamples();
    return wait;
  }, onerror);
}

export function wrongToken(error) {
  return error.status === 403 ? "This page needs an operator's token." : error.message;
}
