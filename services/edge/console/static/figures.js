// The points of charts from samples. Pure functions: totals in, points out; NaN if no request arrived.

export const WINDOW_MS = 30_000;

const share = (part, whole) => (whole > 0 ? part / whole : NaN);

/** Return the first sample of the window that ends at `index`; totals of two frontdoor processes are not compared. */
function windowStart(samples, index) {
  const { at, epoch } = samples[index];
  let start = index;
  while (start > 0 && samples[start - 1].epoch === epoch && (start === index || samples[start].at > at - WINDOW_MS)) start -= 1;
  return samples[start];
}

const windowed = (samples, value) => samples.slice(1).map((now, index) => {
  const before = windowStart(samples, index + 1);
  return [now.at, before === now ? NaN : value(before, now)];
});

/** Return a total's growth per second. */
export const rate = (samples, name) => windowed(samples, (before, now) => ((now[name] - before[name]) / (now.at - before.at)) * 1000);

/** Return a quantile of a window's latencies in seconds; linear within a bucket. */
export function quantile(before, now, wanted) {
  const counts = now.latencies.map(([bound, count], index) => [bound === "Infinity" ? Infinity : bound, count - (before.latencies[index]?.[1] ?? 0)]);
  const all = counts.reduce((total, [, count]) => total + count, 0);
  if (all <= 0) return NaN;
  let left = wanted * all;
  let low = 0;
  for (const [bound, count] of counts) {
    if (left <= count && count > 0) return bound === Infinity ? low : low + ((bound - low) * left) / count;
    left -= count;
    if (bound !== Infinity) low = bound;
  }
  return low;
}

/** Return the number of a window's requests that completed within `seconds`; linear within a bucket. */
export function completedWithin(before, now, seconds) {
  let low = 0;
  return now.latencies.reduce((within, [end, count], index) => {
    const bound = end === "Infinity" ? Infinity : end;
    const found = count - (before.latencies[index]?.[1] ?? 0);
    const share = bound <= seconds ? 1 : bound === Infinity || seconds <= low ? 0 : (seconds - low) / (bound - low);
    low = bound;
    return within + found * share;
  }, 0);
}

/** Return the share of a window's ended requests that completed within the plan's SLO. */
export function sloAttainment(samples) {
  const ended = (sample) => sample.completed + sample.failed + sample.rejected;
  return windowed(samples, (before, now) => (now.slo_s > 0 ? share(completedWithin(before, now, now.slo_s), ended(now) - ended(before)) : NaN));
}

export const latency = (samples, wanted) => windowed(samples, (before, now) => quantile(before, now, wanted));

const hits = (sample) => sample.starts.reduce((total, [kind, , count]) => total + (kind === "noise" ? 0 : count), 0);
const images = (sample) => sample.starts.reduce((total, [, , count]) => total + count, 0);

export const hitRate = (samples) => windowed(samples, (before, now) => share(hits(now) - hits(before), images(now) - images(before)));

const startName = ([kind, saved]) => `${kind}, K = ${saved}`;
const countOf = (sample, name) => sample.starts.reduce((total, start) => total + (startName(start) === name ? start[2] : 0), 0);

/** Return the share of a window's images by kind of start and K: the most frequent ones, the smallest K first. */
export function hitRateByK(samples, most = 6) {
  const found = (samples.at(-1)?.starts ?? []).filter(([kind]) => kind !== "noise");
  const shown = [...found].sort((one, other) => other[2] - one[2]).slice(0, most).sort((one, other) => one[1] - other[1]);
  return shown.map((start) => {
    const name = startName(start);
    return { name, points: windowed(samples, (before, now) => share(countOf(now, name) - countOf(before, name), images(now) - images(before))) };
  });
}

export const computeSaved = (samples) =>
  windowed(samples, (before, now) => share(now.saved - before.saved, now.saved - before.saved + now.run - before.run));

export const deferrals = (samples) =>
  windowed(samples, (before, now) => share(now.deferred - before.deferred, now.scored - before.scored));

/** Return the share of a window's arrivals that were neither rejected, failed nor late. */
export function deadlinesKept(samples) {
  return windowed(samples, (before, now) => {
    const arrived = now.accepted + now.rejected - before.accepted - before.rejected;
    const violated = now.failed + now.rejected + now.late - (before.failed + before.rejected + before.late);
    return arrived > 0 ? Math.max(1 - violated / arrived, 0) : NaN;
  });
}

/** Return a series per name of a field that holds numbers by name. */
export function byName(samples, name, absent) {
  const names = [...new Set(samples.flatMap((sample) => Object.keys(sample[name])))].sort();
  return names.map((each) => ({ name: each, points: samples.map((sample) => [sample.at, sample[name][each] ?? absent]) }));
}
