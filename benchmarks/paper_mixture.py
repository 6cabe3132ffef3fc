"""MoDM, Fig. 10 to 13 and 17, and NIRVANA's throughput: throughput and SLO violations by load and devices."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.paper_orders import Comparison
from benchmarks.paper_systems import MODM_SECONDS, hit_share, mixture_scenario, play, prompt_content, prompt_load
from pentimento.reports import Outcome, RequestRecord
from pentimento.simulator import Simulation
from pentimento.workloads import Content, Segment, Workload, fluctuating
from pentimento.workloads.builders import MODM_FLUCTUATION

SEED = 1
SYSTEMS = ("vanilla", "nirvana-only", "modm")

Rows = list[dict[str, Any]]


def figure_10(quick: bool) -> Comparison:
    """Throughput on sixteen MI210s as the load rises from 6 to 26 requests a minute."""
    rates = (6, 14, 26) if quick else (6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26)
    rows: Rows = [
        {"policy": name, "per_minute": rate, **_throughput(name, rate, quick)} for rate in rates for name in SYSTEMS
    ]
    most = {name: max(row["answered_per_minute"] for row in rows if row["policy"] == name) for name in SYSTEMS}
    orders = {
        "NIRVANA carries more than vanilla": most["nirvana-only"] > most["vanilla"],
        "MoDM carries more than NIRVANA": most["modm"] > most["nirvana-only"],
        "MoDM keeps up with twice what vanilla carries": most["modm"] >= 2.0 * most["vanilla"],
    }
    note = (
        "paper: vanilla about 10 a minute, NIRVANA 20 % more, MoDM 26. 16 devices at 91.5 s give vanilla "
        "10.5. Hit rates follow the made-up log (74 % above 0.65) and not the paper's 92.8 %, so MoDM's "
        "ceiling is lower here."
    )
    return Comparison(rows, orders, note)


def figure_11(quick: bool) -> Comparison:
    """MoDM's throughput by devices, all of them busy, from an empty cache."""
    counts = (4, 16) if quick else (4, 8, 16, 32)
    rows: Rows = []
    for count in counts:
        load = _saturating(count, quick, warm=0, times=3.0)
        records = _run("modm", count, load, warm=0, per_minute=2.0 * count)
        # Within the same time everywhere: more devices have filled more of the cache by then.
        until_s = load.duration_s
        done = sum(record.outcome.answered and record.ended_s <= until_s for record in records)
        hits = mean(record.start_step > 0 for record in records)
        rows.append({"devices": count, "answered_per_minute": 60 * done / until_s, "hit_share": hits})
    per_device = [row["answered_per_minute"] / row["devices"] for row in rows]
    orders = {
        "more devices answer more": per_device[-1] * counts[-1] > per_device[0] * counts[0],
        "a device among many answers no less than one among few": per_device[-1] >= 0.97 * per_device[0],
    }
    return Comparison(rows, orders, "paper: super-linear, since more devices fill the cache sooner.")


def figure_12_13(quick: bool) -> Comparison:
    """SLO violations (2 and 4 times the large model's time) by load, on 4 and 16 devices."""
    rows: Rows = []
    settings = ((4, (2, 6)), (16, (6, 22))) if quick else ((4, (1, 2, 3, 4, 5, 6)), (16, (6, 10, 14, 18, 22, 26)))
    for devices, rates in settings:
        for rate in rates:
            for name in SYSTEMS:
                records = _run(name, devices, _load(rate, quick), _warm(quick), rate)
                rows.append({"policy": name, "devices": devices, "per_minute": rate, **_violations(records)})
    worst = {name: [row for row in rows if row["policy"] == name] for name in SYSTEMS}
    orders = {
        f"{slo}: MoDM violates least under the highest loads": all(
            theirs[slo] >= ours[slo] - 1e-9
            for name in ("vanilla", "nirvana-only")
            for theirs, ours in zip(worst[name], worst["modm"], strict=True)
            if ours["per_minute"] >= ours["devices"]
        )
        for slo in ("over_2x", "over_4x")
    }
    orders["all hold the 4x SLO at the lowest load"] = all(
        row["over_4x"] <= 0.05 for row in rows if row["per_minute"] == settings[-1][1][0] and row["devices"] == 16
    )
    note = (
        "paper: vanilla and NIRVANA break down beyond 14 a minute on 16 MI210s, MoDM at 22 (2x) and 26 (4x). "
        "The 4 devices of the paper are A40s, whose seconds are not published: ours are MI210s, at loads "
        "scaled to them."
    )
    return Comparison(rows, orders, note)


def figure_17(quick: bool) -> Comparison:
    """Throughput under a load that rises and falls between 6 and 26 requests a minute."""
    factor = 0.05 if quick else 1.0
    segments = [Segment(segment.duration_s * factor, segment.rate) for segment in MODM_FLUCTUATION]
    content = _content(quick)
    workload = fluctuating(np.random.default_rng(SEED), content, segments)
    rows: Rows = []
    for name in SYSTEMS:
        records = _run(name, 16, workload, _warm(quick), 6.0)
        late = [record.ended_s - record.arrived_s for record in records]
        in_window = sum(record.ended_s <= workload.duration_s for record in records) / len(records)
        rows.append({"policy": name, "answered_within_the_run": in_window, "mean_latency_s": mean(late)})
    share = {row["policy"]: row["answered_within_the_run"] for row in rows}
    latency = {row["policy"]: row["mean_latency_s"] for row in rows}
    orders = {
        "MoDM follows the demand best": share["modm"] >= max(share["vanilla"], share["nirvana-only"]) - 1e-9,
        "vanilla lags most": latency["vanilla"] == max(latency.values()),
    }
    return Comparison(rows, orders, "paper: vanilla and NIRVANA lag behind peaks and drain their queues afterwards.")


def nirvana_throughput(quick: bool) -> Comparison:
    """Relative throughput with every device busy, warm cache, LCBFU."""
    rows: Rows = []
    for name in ("vanilla", "nirvana-only", "retrieval-only"):
        scenario = mixture_scenario(name, 8, _warm(quick), _warm(quick), 1.0)
        report, _ = play(scenario, _saturating(8, quick, _warm(quick), times=1.6), SEED)
        rows.append({"policy": name, "per_s": report.throughput, "hit_share": hit_share(report)})
    ratio = rows[1]["per_s"] / rows[0]["per_s"]
    orders = {"NIRVANA's throughput is 1.1 to 1.5 of vanilla's": 1.1 <= ratio <= 1.5}
    note = (
        f"paper: 1.28; here {ratio:.2f}, with the log's hit rate of {rows[1]['hit_share']:.2f} (paper: 0.88) "
        "and latents of misses only."
    )
    return Comparison(rows, orders, note)


def _throughput(name: str, per_minute: float, quick: bool) -> dict[str, float]:
    """Answers a minute until the last arrival: a queue that grows is not throughput."""
    load = _load(per_minute, quick)
    records = _run(name, 16, load, _warm(quick), per_minute)
    half_s = load.duration_s / 2
    done = sum(half_s <= record.ended_s <= load.duration_s for record in records)
    return {
        "answered_per_minute": 60 * done / half_s,
        "hit_share": mean(record.start_step > 0 for record in records),
    }


def _run(name: str, devices: int, load: Workload, warm: int, per_minute: float) -> list[RequestRecord]:
    scenario = mixture_scenario(name, devices, 10_000, warm, per_minute / 60.0)
    return Simulation(scenario, load, Random(SEED)).run()


def _violations(records: Sequence[RequestRecord]) -> dict[str, float]:
    large_s = MODM_SECONDS["large"]
    latencies = [r.latency_s if r.outcome in (Outcome.COMPLETED, Outcome.LATE) else float("inf") for r in records]
    return {f"over_{times}x": mean(latency > times * large_s for latency in latencies) for times in (2, 4)}


def _warm(quick: bool) -> int:
    return 200 if quick else 10_000


def _content(quick: bool) -> Content:
    served = 400 if quick else 10_000
    return prompt_content(_warm(quick) + served, _warm(quick), 4 * MODM_SECONDS["large"], SEED)


def _load(per_minute: float, quick: bool) -> Workload:
    return prompt_load(per_minute, 120 if quick else 2_000, _content(quick), SEED)


def _saturating(devices: int, quick: bool, warm: int, times: float) -> Workload:
    """`times` what vanilla carries, so that nobody idles. No more than that: a request looks into the cache when it
    comes, and in a flood nothing would have been painted by then."""
    content = replace(_content(quick), first_prompt=warm)
    count = 20 * devices if quick else 200 * devices
    return prompt_load(times * devices * 60.0 / MODM_SECONDS["large"], count, content, SEED)
