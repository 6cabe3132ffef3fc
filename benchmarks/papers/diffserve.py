"""Simulate DiffServe's Fig. 4 to 8: quality (FID, lower is better) against SLO violations, on sixteen A100s.

Orderings are the paper's sentences, tested at its over-provisioning factor and with a data path as it describes it.
Further rows show whether they hold with the artefact's factor, with the artefact's rule for drops, and with this
suite's late binding. A figure under the trace is the mean over seeds of the arrivals.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.papers.constants import (
    ARTEFACT_OVERPROVISION,
    AZURE_SEGMENT_S,
    CASCADES,
    DISCRIMINATOR_S,
    OVERPROVISION,
    STATIC_LOADS,
    Cascade,
)
from benchmarks.papers.systems import (
    ARTEFACT,
    OURS,
    PAPER,
    Comparison,
    DataPath,
    Fared,
    azure_load,
    cascade_load,
    cascade_policy,
    cascade_scenario,
    cascade_settings,
    fared,
    run,
)
from lab.workloads import Workload

FACTORS = (1.0, OVERPROVISION, ARTEFACT_OVERPROVISION, 1.5, 2.0)
SYSTEMS = ("diffserve", "static-cascade", "proteus", "clipper-light", "clipper-heavy")
ABLATIONS = ("diffserve", "static-threshold", "aimd", "no-queueing-model")
# the first has the target
PATHS = (PAPER, ARTEFACT, OURS)
# Proteus and Clipper do not look at the image.
_CHANCE = ("proteus", "clipper-light", "clipper-heavy")
# Single windows vary with arrivals; two show a system's peak.
_PEAK_WINDOWS = 2

# why two orderings do not hold
_WHY = (
    "The static cascade holds the artefact's allocation, whose heavy pool carries half as much again as the peak "
    "sends on: it cannot violate 19 %, and its FID is 19 % below Clipper-light's and not 9 %, so the paper's figure is "
    "another allocation's. Proteus violates more than DiffServe where late requests are painted, as the artefact does "
    "it, and less where they are dropped in time: it takes a wait of twice the execution for granted, so that batches "
    "of four never fit, while the queue that Little's law sees is that of the batches before; DiffServe takes fours "
    "when it is short, and has two stages to wait in. Without its queueing model DiffServe violates as little as "
    "Proteus under late binding (diffserve8): it is the model of waiting and not the routing."
)

Rows = list[dict[str, Any]]
Found = Mapping[str, Mapping[str, Any]]
"""Rows by policy."""


def figure_4(quick: bool) -> Comparison:
    """Simulate static demand, low to high; the dynamic systems over a range of over-provisioning factors."""
    rows: Rows = []
    length_s = 40.0 if quick else 600.0
    cascade = CASCADES[0]
    for level, rate in STATIC_LOADS.items():
        load = cascade_load([rate], length_s, cascade.slo_s, 1)
        for path in (PAPER, OURS):
            told = {"level": level, "path": path.name}
            for factor in (OVERPROVISION, 2.0) if quick else FACTORS:
                for name in ("diffserve", "proteus"):
                    rows.append({**told, "factor": factor, **_static_row(name, cascade, load, rate, factor, path)})
            for name in ("clipper-light", "clipper-heavy"):
                rows.append({**told, **_static_row(name, cascade, load, rate, OVERPROVISION, path)})
    note = (
        "paper: DiffServe is Pareto-optimal at every load, Clipper-heavy violates 45.1-74.1 %, Clipper-light least. "
        "Its loads are worked out from Clipper-heavy's violations. A point of Proteus that is not dominated has fewer "
        "violations, and a FID higher by three, than DiffServe reaches at the largest factor that was tried."
    )
    beside = {OURS.name: _static_orders(rows, OURS)}
    return Comparison(rows, _static_orders(rows, PAPER), note, beside)


def figure_5(quick: bool) -> Comparison:
    """Simulate Azure's trace, Cascade 1."""
    rows = _under_trace(CASCADES[0], SYSTEMS, quick)
    note = (
        "paper: DiffServe's FID up to 23.4 % better, the static cascade's and Proteus's up to 9 and under 5 % better "
        f"than Clipper-light's; violations at the peak: static cascade up to 19 %, Clipper-heavy up to 75 %. {_WHY}"
    )
    return _compared(rows, note, lambda found: _orders_under_trace(found) | _orders_of_quality(found))


def figure_6(quick: bool) -> Comparison:
    """Simulate Azure's trace, Cascades 2 and 3."""
    rows = [row for cascade in CASCADES[1:] for row in _under_trace(cascade, SYSTEMS, quick)]
    note = (
        "paper: 1.4, 1.7 and 26 times fewer violations than static cascade, Proteus and Clipper-heavy (Cascade 2: "
        "Clipper-heavy 68.4 %), 1.2, 1.9 and 52 times (Cascade 3: 73 %); FID 6-24 % and 8-15 % below all but "
        f"Clipper-heavy's. {_WHY}"
    )
    return _compared(rows, note, _orders_under_trace)


def figure_7(quick: bool) -> Comparison:
    """Return FID against mean latency as the threshold moves: the discriminator's published tables against chance.

    An acceptance test, not a reproduction: arithmetic on the artefact's tables.
    """
    rows: Rows = []
    orders: dict[str, bool] = {}
    for cascade in CASCADES[:2]:
        light_s, heavy_s = cascade.light[1], cascade.heavy[1]
        for tenth, known in enumerate(cascade.fid):
            share = tenth / 10
            rows.append(
                {
                    "pair": cascade.name,
                    "light_share": share,
                    "fid": known,
                    "latency_s": light_s + DISCRIMINATOR_S + (1 - share) * heavy_s,
                    "random_fid": cascade.fid[0] + share * (cascade.fid[-1] - cascade.fid[0]),
                    "random_latency_s": share * light_s + (1 - share) * heavy_s,
                }
            )
        inner = [row for row in rows if row["pair"] == cascade.name][1:-1]
        orders[f"{cascade.name}: below chance at every share"] = all(row["fid"] < row["random_fid"] for row in inner)
        orders[f"{cascade.name}: below chance at every latency"] = all(_below_chance(cascade, row) for row in inner)
        orders[f"{cascade.name}: a mix beats both ends"] = min(cascade.fid) < min(cascade.fid[0], cascade.fid[-1])
    note = (
        "The curves of ResNet, ViT and EfficientNet trained on fakes are not published as numbers; the benchmark of "
        "the zoo's discriminators measures ours. An acceptance test: nothing is simulated, the tables are the "
        "artefact's."
    )
    return Comparison(rows, orders, note)


def figure_8(quick: bool) -> Comparison:
    """Simulate ablations of the allocator under Azure's trace, Cascade 1."""
    note = (
        "paper: static threshold up to 19 % worse quality off-peak, AIMD up to 20 % more violations, no queueing model "
        "up to 12 % worse quality off-peak. 'Twice the execution delay' is read as e(b) + q(b) = 2 e(b): were q(b) = 2 "
        "e(b), the heavy model could never be used within this SLO. AIMD pays with quality here: it plans with batches "
        "that violations have made small, so that less is sent on. Off-peak everything is sent on with either model of "
        "the queue, and the published FID of all-heavy is above that of the mix: so no queueing model costs nothing."
    )
    return _compared(_under_trace(CASCADES[0], ABLATIONS, quick), note, _orders_of_ablations)


def _static_row(
    name: str, cascade: Cascade, load: Workload, rate: float, factor: float, path: DataPath
) -> dict[str, Any]:
    policy = cascade_policy(name, cascade, cascade_settings(cascade, rate, factor))
    records = run(cascade_scenario(cascade, policy, path=path), load, 1)
    found = fared(cascade, records, chosen=name not in _CHANCE)
    return {"policy": name, "violations": found.violations, "fid": found.fid, "light_share": found.light_share}


def _under_trace(cascade: Cascade, names: Sequence[str], quick: bool) -> Rows:
    """Simulate every data path at the paper's factor; systems with a factor also at the artefact's."""
    seeds = range(1) if quick else range(5)
    dynamic = [name for name in names if name not in ("static-cascade", "clipper-light", "clipper-heavy")]
    return [
        _trace_row(cascade, name, factor, path, seeds)
        for path in PATHS
        for factor, asked in ((OVERPROVISION, names), (ARTEFACT_OVERPROVISION, dynamic))
        for name in asked
    ]


def _trace_row(cascade: Cascade, name: str, factor: float, path: DataPath, seeds: Sequence[int]) -> dict[str, Any]:
    policy = cascade_policy(name, cascade, cascade_settings(cascade, cascade.low, factor))
    scenario = cascade_scenario(cascade, policy, path=path)
    runs: list[Fared] = [
        fared(cascade, run(scenario, azure_load(cascade, seed), seed), chosen=name not in _CHANCE) for seed in seeds
    ]
    violations_over_time = _mean_over_runs([one.violations_over_time for one in runs])
    return {
        "policy": name,
        "pair": cascade.name,
        "factor": factor,
        "path": path.name,
        "violations": _mean([one.violations for one in runs]),
        "violations_by_seed": [round(one.violations, 4) for one in runs],
        "peak_violations": max(_smoothed(violations_over_time)),
        "fid": _mean([one.fid for one in runs]),
        "fid_by_seed": [round(one.fid, 2) for one in runs],
        "light_share": _mean([one.light_share for one in runs]),
        "window_s": AZURE_SEGMENT_S,
        "violations_over_time": [round(value, 3) for value in violations_over_time],
        "fid_over_time": [round(value, 2) for value in _mean_over_runs([one.fid_over_time for one in runs])],
    }


def _compared(rows: Rows, note: str, orders_of: Callable[[Found], dict[str, bool]]) -> Comparison:
    """Compare the orderings for each pair of models; only the first data path at the paper's factor has a target."""
    by_case: dict[str, dict[str, bool]] = {}
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    for path in PATHS:
        for factor in (OVERPROVISION, ARTEFACT_OVERPROVISION):
            held = by_case[f"{path.name}, factor {factor}"] = {}
            for pair in pairs:
                found = _found(rows, pair, factor, path)
                told = orders_of(found)
                held |= {f"{pair}: {sentence}" if len(pairs) > 1 else sentence: ok for sentence, ok in told.items()}
    (_, tested), *beside = by_case.items()
    return Comparison(rows, tested, note, dict(beside))


def _found(rows: Rows, pair: str, factor: float, path: DataPath) -> Found:
    """Return rows by policy; policies without a factor have one row."""
    here = [row for row in rows if row["pair"] == pair and row["path"] == path.name]
    fixed = {row["policy"]: row for row in here if row["factor"] == OVERPROVISION}
    return fixed | {row["policy"]: row for row in here if row["factor"] == factor}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean_over_runs(series: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    length = min(len(one) for one in series)
    return tuple(float(value) for value in np.mean([one[:length] for one in series], axis=0))


def _smoothed(values: Sequence[float]) -> list[float]:
    kernel = np.ones(_PEAK_WINDOWS) / _PEAK_WINDOWS
    return [float(value) for value in np.convolve(values, kernel, mode="valid")]


def _static_orders(rows: Rows, path: DataPath) -> dict[str, bool]:
    orders = {}
    for level in STATIC_LOADS:
        here = [row for row in rows if row["level"] == level and row["path"] == path.name]
        orders[f"{level}: no point of DiffServe is dominated by one of Proteus"] = not covers("proteus", here, any)
        orders[f"{level}: every point of Proteus is dominated by one of DiffServe"] = covers("diffserve", here, all)
        orders[f"{level}: Clipper-heavy violates most"] = _extreme(here, max, "violations") == "clipper-heavy"
        orders[f"{level}: Clipper-light violates least"] = _least(here, "clipper-light")
        orders[f"{level}: Clipper-light has the highest FID"] = _extreme(here, max, "fid") == "clipper-light"
    return orders


def _orders_under_trace(found: Found) -> dict[str, bool]:
    ours, others = found["diffserve"], ("static-cascade", "proteus", "clipper-light")
    return {
        **{f"DiffServe has a lower FID than {name}": ours["fid"] < found[name]["fid"] for name in others},
        "DiffServe violates less than the static cascade": ours["violations"] < found["static-cascade"]["violations"],
        "DiffServe violates less than Proteus": ours["violations"] < found["proteus"]["violations"],
        "Clipper-heavy violates most": _extreme(found.values(), max, "violations") == "clipper-heavy",
        "Clipper-light violates least": _least(found.values(), "clipper-light"),
    }


def _orders_of_quality(found: Found) -> dict[str, bool]:
    return {
        "the static cascade's FID is below Proteus's": found["static-cascade"]["fid"] < found["proteus"]["fid"],
        "Clipper-light has the highest FID": _extreme(found.values(), max, "fid") == "clipper-light",
    }


def _orders_of_ablations(found: Found) -> dict[str, bool]:
    ours = found["diffserve"]
    return {
        "a static threshold has a higher FID": found["static-threshold"]["fid"] > ours["fid"],
        "AIMD batching has more violations": found["aimd"]["violations"] > ours["violations"],
        "no queueing model has a higher FID": found["no-queueing-model"]["fid"] > ours["fid"],
    }


def _extreme(rows: Iterable[Mapping[str, Any]], which: Callable[..., Mapping[str, Any]], field: str) -> str:
    """Return the policy with the largest or the smallest value."""
    return str(which(rows, key=lambda row: row[field])["policy"])


def _least(rows: Iterable[Mapping[str, Any]], policy: str) -> bool:
    """Return whether no other policy violates less."""
    violations = {row["policy"]: row["violations"] for row in rows}
    return bool(violations[policy] <= min(violations.values()))


def covers(policy: str, rows: Rows, how_many: Callable[[Iterable[bool]], bool]) -> bool:
    """Return whether enough points of the other system have one of `policy` that is no worse in quality and in
    violations.

    Differences of a twentieth of a point of FID and half a percent of the requests count as equal.
    """
    ours = [row for row in rows if row["policy"] == policy]
    theirs = [row for row in rows if row["policy"] in {"diffserve", "proteus"} - {policy}]
    return how_many(
        any(our["fid"] <= row["fid"] + 0.05 and our["violations"] <= row["violations"] + 0.005 for our in ours)
        for row in theirs
    )


def _below_chance(cascade: Cascade, row: Mapping[str, Any]) -> bool:
    """Compare at equal mean latency: a random router that never generates twice may defer more to the heavy model."""
    light_s, heavy_s = cascade.light[1], cascade.heavy[1]
    share = min(max((heavy_s - row["latency_s"]) / (heavy_s - light_s), 0.0), 1.0)
    return bool(row["fid"] < cascade.fid[0] + share * (cascade.fid[-1] - cascade.fid[0]))
