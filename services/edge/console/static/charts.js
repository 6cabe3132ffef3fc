// Charts of the deployment over time, also before the page was opened: the edge stores samples.

import { bars, LineChart } from "./chart.js";
import { duration, h, notice, percent, plainName } from "./dom.js";
import { byName, computeSaved, deadlinesKept, deferrals, hitRate, hitRateByK, latency, rate, sloAttainment } from "./figures.js";
import { samples, watchHistory, wrongToken } from "./looks.js";

const AVERAGED = "over the last 30 s";
const SHARE = { format: percent, top: 1 };

const CHARTS = [
  [() => new LineChart("Requests a second", { hint: AVERAGED }), (all) => ["accepted", "completed", "rejected", "failed"].map((name) => ({ name, points: rate(all, name) }))],
  [() => new LineChart("Latency", { format: (seconds) => duration(seconds * 1000), hint: `of completed requests, ${AVERAGED}` }), (all) =>
    [["p50", 0.5], ["p90", 0.9], ["p99", 0.99]].map(([name, wanted]) => ({ name, points: latency(all, wanted) }))],
  [() => new LineChart("Hit rate and compute saved", { ...SHARE, hint: AVERAGED }), (all) => [
    { name: "images from the cache", points: hitRate(all) }, { name: "steps saved", points: computeSaved(all) }]],
  [() => new LineChart("Hit rate by K", { ...SHARE, hint: `share of images, by steps saved, ${AVERAGED}` }), (all) => hitRateByK(all)],
  [() => new LineChart("Deadlines kept", { ...SHARE, hint: `of all requests, ${AVERAGED}` }), (all) => [{ name: "kept", points: deadlinesKept(all) }]],
  [() => new LineChart("Allocation", { whole: true, hint: "workers by the plan" }), (all) => byName(all, "workers", 0)],
  [() => new LineChart("Admission", { ...SHARE, hint: "share of the demand that the plan admits" }), (all) => [{ name: "admitted", points: all.map((one) => [one.at, one.admission]) }]],
];
// Shown only with cascades or an SLO.
const OPTIONAL = [
  [() => new LineChart("SLO attainment", { ...SHARE, hint: `within the plan's ${samples.at(-1).slo_s} s, ${AVERAGED}` }), (all) => [{ name: "attained", points: sloAttainment(all) }], (sample) => sample.slo_s > 0],
  [() => new LineChart("Deferral rate", { ...SHARE, hint: `scored images that were deferred, ${AVERAGED}` }), (all) => [{ name: "deferred", points: deferrals(all) }], (sample) => sample.scored > 0],
  [() => new LineChart("Confidence threshold", { top: 1, hint: "by the plan" }), (all) => byName(all, "thresholds", NaN).map((one) => ({ ...one, name: plainName(one.name, Object.keys(all.at(-1).workers)) })), (sample) => Object.keys(sample.thresholds).length > 0],
];

export class Charts {
  async open(main) {
    this.problem = h("div");
    this.starts = h("figure", { class: "chart card" });
    this.grid = h("div", { class: "chart-grid" });
    this.charts = [];
    this.waiting = OPTIONAL;
    main.append(h("h1", null, "Charts"), this.problem, this.grid);
    this.add(CHARTS);
    this.grid.append(this.starts);
    this.watching = watchHistory(() => this.show(), (error) => this.problem.replaceChildren(notice("bad", wrongToken(error))));
    await this.watching.first;
  }

  close() { this.watching?.stop(); }

  add(list) {
    for (const [make, series] of list) {
      const chart = make();
      this.charts.push([chart, series]);
      this.grid.append(chart.element);
    }
  }

  show() {
    this.problem.replaceChildren();
    const shown = this.waiting.filter(([, , isThere]) => samples.some(isThere));
    this.waiting = this.waiting.filter((one) => !shown.includes(one));
    this.add(shown);
    for (const [chart, series] of this.charts) chart.update(series(samples));
    this.starts.replaceChildren(...bars("Starts of images", "by steps saved, since the frontdoor's start", startRows(samples.at(-1))));
  }
}

function startRows(sample) {
  const all = sample?.starts ?? [];
  const total = all.reduce((sum, [, , count]) => sum + count, 0);
  return [...all].sort(([, one], [, other]) => one - other).map(([kind, saved, count]) => ({
    name: kind === "noise" ? "noise" : `${kind}, K = ${saved}`, kind: kind === "noise" ? "miss" : "hit", value: count, words: `${count} (${percent(count / total)})`,
  }));
}
