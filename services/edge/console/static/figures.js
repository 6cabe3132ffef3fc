// From looks to what charts show. Pure: totals in, points out; NaN where nobody came.

export const WINDOW_MS = 30_000;

const pairs = (samples, value) => samples.slice(1).map((sample, index) => [sample.at, value(samples[index], sample, index + 1)]);
const share = (part, whole) => (whole > 0 ? part / whole : NaN);
const sumOf = (sample, name) => sample.pools.reduce((total, pool) => total + (pool[name] ?? 0), 0);

/** The look from which a window that ends at `index` begins. */
function windowStart(samples, index) {
  const from = samples[index].at - WINDOW_MS;
  let start = index - 1;
  while (start > 0 && samples[start].at > from) start -= 1;
  return samples[start];
}

const windowed = (samples, value) => pairs(samples, (_, now, index) => value(windowStart(samples, index), now));

/** A total's growth a second. */
export const rate = (samples, name) => windowed(samples, (before, now) => ((now[name] - before[name]) / (now.at - before.at)) * 1000);

/** The latency in seconds that a share of the requests of a window kept; linear within a bucket. */
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

export const latency = (samples, wanted) => windowed(samples, (before, now) => quantile(before, now, wanted));

const hits = (sample) => sample.starts.reduce((total, [kind, , count]) => total + (kind === "noise" ? 0 : count), 0);
const pictures = (sample) => sample.starts.reduce((total, [, , count]) => total + count, 0);

export const hitRate = (samples) => windowed(samples, (before, now) => share(hits(now) - hits(before), pictures(now) - pictures(before)));

export const computeSaved = (samples) =>
  windowed(samples, (before, now) => share(now.saved - before.saved, now.saved - before.saved + now.run - before.run));

export const deferrals = (samples) =>
  windowed(samples, (before, now) => share(sumOf(now, "deferred_count") - sumOf(before, "deferred_count"), sumOf(now, "scored_count") - sumOf(before, "scored_count")));

/** The share of arrivals of a window that were neither refused, nor failed, nor late. */
export function attainment(samples) {
  return windowed(samples, (before, now) => {
    const arrived = now.accepted + now.rejected - before.accepted - before.rejected;
    const violated = now.failed + now.rejected + sumOf(now, "late_count") - (before.failed + before.rejected + sumOf(before, "late_count"));
    return arrived > 0 ? Math.max(1 - violated / arrived, 0) : NaN;
  });
}

/** A series for each name of a field that holds numbers by name. */
export function byName(samples, name, absent) {
  const names = [...new Set(samples.flatMap((sample) => Object.keys(sample[name])))].sort();
  return names.map((each) => ({ name: each, points: samples.map((sample) => [sample.at, sample[name][each] ?? absent]) }));
}
