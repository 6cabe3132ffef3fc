"""Simulate MoDM's Fig. 10 to 13 and 17, and NIRVANA's throughput: throughput and SLO violations by load and devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.papers.constants import A40_SECONDS, MI210_SECONDS, NIRVANA_IMAGE_S, NIRVANA_SEARCH_S
from benchmarks.papers.systems import (
    Comparison,
    hit_share,
    mixture_scenario,
    one_at_a_time,
    prompt_content,
    prompt_load,
    run,
)
from lab.runs import RequestRecord
from lab.simulator.scenario import Delays, Scenario, SimulatedModel
from lab.workloads import Content, Segment, Workload, fluctuating
from lab.workloads.builders import MODM_FLUCTUATION
from pentimento.profiles.costs import steady

SEED = 1
SYSTEMS = ("vanilla", "nirvana-only", "modm")
# section 6, Experimental Setup: a cache of 10,000 images, 10,000 requests
CACHE = 10_000

# the share of answers at which a rate counts as sustained, and the share of violations at which an SLO counts as held
SUSTAINED = 0.97
HELD = 0.05

Rows = list[dict[str, Any]]


def figure_10(quick: bool) -> Comparison:
    """Measure throughput on sixteen MI210s as the load rises from 6 to 26 requests a minute, and beyond."""
    rates = (6, 14, 26) if quick else (6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34)
    rows: Rows = [
        {"policy": name, "per_minute": rate, **_throughput(name, rate, quick)} for rate in rates for name in SYSTEMS
    ]
    most = {name: max(row["answered_per_minute"] for row in rows if row["policy"] == name) for name in SYSTEMS}
    ours = [row for row in rows if row["policy"] == "modm"]
    orders = {
        "vanilla answers about 10 a minute at most": 9.0 <= most["vanilla"] <= 11.0,
        "NIRVANA carries more than vanilla": most["nirvana-only"] > most["vanilla"],
        "MoDM carries more than NIRVANA": most["modm"] > most["nirvana-only"],
        "MoDM sustains every load up to 26 a minute": all(
            row["answered_per_minute"] >= SUSTAINED * row["per_minute"] for row in ours if row["per_minute"] <= 26
        ),
        "MoDM takes SANA in at the highest loads alone": ours[-1]["sana_share"] > 0 == ours[0]["sana_share"],
    }
    note = (
        "paper: vanilla about 10 a minute, NIRVANA 20 % more, MoDM 26, with SDXL up to 22 and SANA beyond. 16 devices "
        "at 91.5 s give vanilla 10.5. The similarities are those of a made-up log under a sentence encoder: how many "
        "steps hits save, and so the load at which SDXL does not suffice, is another."
    )
    return Comparison(rows, orders, note)


def figure_11(quick: bool) -> Comparison:
    """Measure MoDM's throughput by devices, all busy, from an empty cache, which more devices fill sooner."""
    rows: Rows = []
    for devices in (4, 16) if quick else (4, 8, 16, 32):
        workload = _load(1.0, (20 if quick else 300) * devices, 0, quick)
        records = run(_busy(_scenario("modm", devices, 0, 2.0 * devices)), workload, SEED)
        answered = len(records) / max(record.ended_s for record in records)
        rows.append({"devices": devices, "answered_per_minute": 60 * answered, "hit_share": hit_share(records)})
    per_device = [row["answered_per_minute"] / row["devices"] for row in rows]
    orders = {
        "more devices find more in the cache": _rises([row["hit_share"] for row in rows]),
        "throughput grows faster than the number of devices": _rises(per_device),
    }
    note = (
        "paper: super-linear, since within a given time more images are in the cache. 300 requests a device, the same "
        "time for all. In the made-up log a prompt that has something near it has it early: what was measured of the "
        "real one ends after 3,500 prompts, and the paper's growth of hits is that from 1,000 to 100,000. And more "
        "devices have more under way that cannot be reused yet."
    )
    return Comparison(rows, orders, note)


def figure_12_13(quick: bool) -> Comparison:
    """Measure SLO violations (2 and 4 times the large model's time) by load, on 4 A40s and 16 MI210s."""
    rows: Rows = []
    fleets = (
        ("4 A40", 4, A40_SECONDS, (4, 5, 6, 7, 8, 9, 10)),
        ("16 MI210", 16, MI210_SECONDS, (6, 10, 14, 18, 22, 26)),
    )
    for fleet, devices, seconds, rates in fleets:
        for rate in rates[::3] if quick else rates:
            for name in SYSTEMS:
                by_seed = [
                    _violations(
                        run(_scenario(name, devices, CACHE, rate, seconds), _timed(rate, quick, seed), seed), seconds
                    )
                    for seed in (range(1) if quick else range(3))
                ]
                found = {slo: mean(one[slo] for one in by_seed) for slo in by_seed[0]}
                rows.append({"policy": name, "fleet": fleet, "per_minute": rate, **found})
    return Comparison(rows, _orders_of_slos(rows), _SLO_NOTE)


def figure_17(quick: bool) -> Comparison:
    """Measure throughput over time under a load that rises and falls between 6 and 26 requests a minute."""
    factor = 0.1 if quick else 1.0
    segments = [Segment(segment.duration_s * factor, segment.rate) for segment in MODM_FLUCTUATION]
    workload = fluctuating(np.random.default_rng(SEED), _content(CACHE, quick), segments)
    asked = [60 * segment.rate for segment in segments]
    rows: Rows = [{"policy": "demand", "per_minute": asked}]
    for name in SYSTEMS:
        records = run(_scenario(name, 16, CACHE, 6.0), workload, SEED)
        answered = _answered_by_segment(records, segments)
        rows.append(
            {
                "policy": name,
                "per_minute": [round(rate, 2) for rate in answered],
                "off_by": mean(abs(rate - demand) for rate, demand in zip(answered, asked, strict=True)),
                "mean_latency_s": mean(record.latency_s for record in records),
            }
        )
    found = {row["policy"]: row for row in rows[1:]}
    top, first = max(asked), asked.index(max(asked))
    low_after_peak = first + asked[first:].index(min(asked))
    orders = {
        "MoDM follows the demand best": found["modm"]["off_by"] == min(row["off_by"] for row in rows[1:]),
        **{
            f"{name} lags behind the first peak": found[name]["per_minute"][first] < 0.9 * top
            for name in ("vanilla", "nirvana-only")
        },
        **{
            f"{name} drains its queue when the demand is low": found[name]["per_minute"][low_after_peak]
            > 1.2 * min(asked)
            for name in ("vanilla", "nirvana-only")
        },
    }
    note = (
        "paper: MoDM matches the demand; vanilla and NIRVANA lag behind peaks, and their throughput stays high in the "
        "lows, since they are draining their queues. Neither its times nor the levels in between are printed: ours."
    )
    return Comparison(rows, orders, note)


def nirvana_throughput(quick: bool) -> Comparison:
    """Play section 7.1: each prompt follows the end of the one before, after 10,000 that fill the cache; one device."""
    rows: Rows = []
    for name in ("vanilla", "nirvana-only", "retrieval-only"):
        warm, count = (200, 200) if quick else (CACHE, CACHE)
        searched = Delays() if name == "vanilla" else Delays(route=steady(NIRVANA_SEARCH_S))
        # 1.5 million latents, as in 7.3: nothing is evicted here
        scenario = replace(
            mixture_scenario(name, 1, 300_000, warm, 1.0),
            models=tuple(SimulatedModel(one_at_a_time(model, NIRVANA_IMAGE_S)) for model in MI210_SECONDS),
            delays=searched,
            closed_loop=1,
        )
        records = run(scenario, _load(1.0, count, warm, quick), SEED)
        elapsed_s = max(record.ended_s for record in records)
        rows.append(
            {
                "policy": name,
                "per_minute": 60 * len(records) / elapsed_s,
                "mean_latency_s": mean(record.latency_s for record in records),
                "hit_share": hit_share(records),
                "steps_saved": mean(record.start_step / 50 for record in records),
            }
        )
    vanilla, nirvana, retrieval = (row["per_minute"] for row in rows)
    ratio = nirvana / vanilla
    orders = {
        "NIRVANA's throughput is 1.1 to 1.5 of vanilla's": 1.1 <= ratio <= 1.5,
        "pure retrieval is quicker still": retrieval > nirvana,
    }
    note = (
        "paper: 1.28 with hits of 0.88 and 0.21 of the steps saved among up to 1.5 million latents; 0.77 and 0.15 in "
        "its Table 3 with 15,000 latents, 0.82 and 0.18 with 150,000. "
        f"Here {ratio:.2f} with hits of {rows[1]['hit_share']:.2f} and {rows[1]['steps_saved']:.2f} saved among up to "
        "100,000: similarities are a sentence encoder's and not CLIP's; only misses are stored, as in the paper."
    )
    return Comparison(rows, orders, note)


_SLO_NOTE = (
    "paper: all hold at the lowest load; vanilla's and NIRVANA's violations predominate beyond 5 a minute on A40s and "
    "14 on MI210s; MoDM holds 10 and 22 (2x), 26 on MI210s (4x). Seconds on A40s are worked out from the artefact's "
    "SLOs, rounded: 60 s make 4.0 a minute all that vanilla carries on four, so it is at its limit at the lowest load."
)


def _orders_of_slos(rows: Rows) -> dict[str, bool]:
    orders = {}
    for fleet, broken_beyond, held_to in (
        ("4 A40", 5, {"over_2x": 10}),
        ("16 MI210", 14, {"over_2x": 22, "over_4x": 26}),
    ):
        here = [row for row in rows if row["fleet"] == fleet]
        lowest = min(row["per_minute"] for row in here)
        orders[f"{fleet}: all hold the 4x SLO at the lowest load"] = all(
            row["over_4x"] <= HELD for row in here if row["per_minute"] == lowest
        )
        for name in ("vanilla", "nirvana-only"):
            beyond = [row["over_2x"] for row in here if row["policy"] == name and row["per_minute"] > broken_beyond]
            orders[f"{fleet}: most of {name}'s requests violate the 2x SLO beyond {broken_beyond}"] = min(beyond) > 0.5
        ours = [row for row in here if row["policy"] == "modm"]
        for slo, rate in held_to.items():
            held = all(row[slo] <= HELD for row in ours if row["per_minute"] <= rate)
            orders[f"{fleet}: MoDM holds the {slo.removeprefix('over_')} SLO up to {rate}"] = held
        orders[f"{fleet}: MoDM violates least at every load"] = _violates_least(here, ours)
    return orders


def _violates_least(rows: Rows, ours: Rows) -> bool:
    return all(
        our[slo] <= row[slo] + 1e-9
        for our in ours
        for row in rows
        for slo in ("over_2x", "over_4x")
        if row["per_minute"] == our["per_minute"]
    )


def _throughput(name: str, per_minute: float, quick: bool) -> dict[str, float]:
    """Return answers a minute in the second half of the load: a growing queue is not throughput."""
    load = _load(per_minute, 120 if quick else 2_000, CACHE, quick)
    records = run(_scenario(name, 16, CACHE, per_minute), load, SEED)
    half_s = load.duration_s / 2
    hits = [record for record in records if record.start_step > 0]
    return {
        "answered_per_minute": 60 * sum(half_s <= record.ended_s <= load.duration_s for record in records) / half_s,
        "hit_share": hit_share(records),
        "sana_share": mean(record.model == "sana" for record in hits) if hits else 0.0,
    }


def _answered_by_segment(records: Sequence[RequestRecord], segments: Sequence[Segment]) -> list[float]:
    """Return answers a minute, by segment."""
    ends = [0.0, *np.cumsum([segment.duration_s for segment in segments])]
    counts, _ = np.histogram([record.ended_s for record in records], bins=ends)
    return [float(60 * count / segment.duration_s) for count, segment in zip(counts, segments, strict=True)]


def _violations(records: Sequence[RequestRecord], seconds: Mapping[str, float]) -> dict[str, float]:
    large_s = seconds["large"]
    return {f"over_{times}x": mean(record.latency_s > times * large_s for record in records) for times in (2, 4)}


def _scenario(
    name: str, devices: int, warm: int, per_minute: float, seconds: Mapping[str, float] = MI210_SECONDS
) -> Scenario:
    return mixture_scenario(name, devices, CACHE, warm, per_minute / 60.0, seconds)


def _busy(scenario: Scenario) -> Scenario:
    """Keep just enough requests in flight to make every device busy: a request looks into the cache on arrival, and
    images of queued requests are not in it."""
    return replace(scenario, closed_loop=2 * scenario.device_count)


def _timed(per_minute: float, quick: bool, seed: int) -> Workload:
    """Return a thousand requests, the number over which the artefact counts violations."""
    return prompt_load(per_minute, 120 if quick else 1_000, _content(CACHE, quick), seed)


def _load(per_minute: float, count: int, first: int, quick: bool) -> Workload:
    return prompt_load(per_minute, count, _content(first, quick), SEED)


def _content(first: int, quick: bool) -> Content:
    """Return prompts from number `first` on; earlier ones are in the cache."""
    return replace(_log(quick), first_prompt=first)


@cache
def _log(quick: bool) -> Content:
    return prompt_content(CACHE + (500 if quick else CACHE), 0, 4 * MI210_SECONDS["large"], SEED)


def _rises(values: Sequence[float]) -> bool:
    return list(values) == sorted(values)
