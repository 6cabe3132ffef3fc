// The deployment's status and history, polled while a page shows them.

import { get } from "./api.js";

const EVERY_MS = 2000;
const MOST = 2000;

/** The samples of the charts, oldest first; services/edge/history/samples.py documents their fields. */
export const samples = [];

const number = (bound) => (bound === "Infinity" ? Infinity : bound);

/** Append new samples. After the server's clock went back, they replace the later ones. */
function keep(found) {
  for (const sample of found) {
    while (samples.length && samples.at(-1).at >= sample.at) samples.pop();
    samples.push({ ...sample, latencies: sample.latencies.map(([bound, count]) => [number(bound), count]) });
  }
  if (samples.length > MOST) samples.splice(0, samples.length - MOST);
}

/** Call `ask` until stopped; it resolves to the milliseconds before its next call. Errors go to `onerror`. */
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

/** Call `onstatus` with the present status, now and every two seconds. */
export function watch(onstatus, onerror) {
  return again(async (signal) => {
    onstatus(await get("status", signal));
    return EVERY_MS;
  }, onerror);
}

/** Call `onsamples` whenever `samples` may have grown. The edge samples for all pages; each requests the ones it lacks. */
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
