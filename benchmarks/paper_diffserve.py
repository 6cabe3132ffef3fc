"""DiffServe, Fig. 4 to 8: quality (FID, lower is better) against SLO violations, on sixteen A100s."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.paper_orders import Comparison
from benchmarks.paper_systems import (
    CASCADES,
    FID,
    Cascade,
    cascade_load,
    cascade_scenario,
    cascade_settings,
    diffserve_with,
    fid,
    play,
)
from pentimento.policies.serving import SERVING_POLICIES, ServingPolicy
from pentimento.workloads import Workload

SEED = 1
WARM_UP_S = 20.0

# A day's swing by four. Static systems are provisioned for what was anticipated, which the peak exceeds.
SWING = (0.25, 0.4, 0.6, 0.8, 0.95, 1.0, 0.9, 0.65, 0.4, 0.25)
ANTICIPATED = 0.6
# The factor of the artefact; with the paper's 1.05 the heavy pool runs at 95 % and Poisson bursts break the SLO.
OVERPROVISION = 1.2

Rows = list[dict[str, Any]]


def figure_4(quick: bool) -> Comparison:
    """Static demand, low to high; the dynamic systems over a range of over-provisioning factors."""
    rows: Rows = []
    length_s = 40.0 if quick else 600.0
    for level, rate in (("low", 8.0), ("medium", 16.0), ("high", 24.0)):
        workload = cascade_load([rate], length_s, 5.0, SEED)
        settings = cascade_settings(CASCADES[0], rate, rate)
        for factor in (1.05, 1.5) if quick else (1.0, 1.05, 1.2, 1.5, 2.0):
            rows.append(_row(diffserve_with(settings, factor), workload, level=level, factor=factor))
            proteus = SERVING_POLICIES["proteus"](replace(settings, overprovision=factor))
            rows.append(_row(proteus, workload, level=level, factor=factor))
        for name in ("clipper-light", "clipper-heavy"):
            rows.append(_row(SERVING_POLICIES[name](settings), workload, level=level, factor=1.0))
    orders = {}
    for level in ("low", "medium", "high"):
        here = [row for row in rows if row["level"] == level]
        best = {name: min(row["fid"] for row in here if row["policy"] == name) for name in ("diffserve", "proteus")}
        most = max(here, key=lambda row: row["violations"])
        orders[f"{level}: no point of Proteus dominates DiffServe's curve"] = not _dominated(here)
        orders[f"{level}: DiffServe reaches a lower FID than Proteus"] = best["diffserve"] <= best["proteus"] + 1e-9
        if level != "low":
            orders[f"{level}: Clipper-heavy has most violations"] = most["policy"] == "clipper-heavy"
    note = (
        "paper: DiffServe is Pareto-optimal at every load, Clipper-heavy violates 45-74 %, Clipper-light "
        "least. FID is read from the published table by the share that the light model answered; a random mix "
        "lies on the line between the ends."
    )
    return Comparison(rows, orders, note)


def figure_5(quick: bool) -> Comparison:
    """A load that swings by four, Cascade 1."""
    rows = _swing(CASCADES[0], 32.0, quick)
    orders = _orders_under_swing(rows)
    note = (
        "paper: DiffServe's quality up to 23.4 % better; static cascade up to 19 % violations at the peak, "
        "Clipper-heavy up to 75 %, Clipper-light none. The paper's trace is Azure Functions'; ours a made-up "
        "day of the same swing. Our Proteus may violate less than DiffServe: it gets DiffServe's "
        "over-provisioning and averaging, its requests run one model and not two, and its assumed wait of "
        "twice the execution is more cautious than Little's law, which sees the mean queue and not its "
        "bursts. Its FID pays for that."
    )
    return Comparison(rows, orders, note)


def figure_6(quick: bool) -> Comparison:
    """Cascades 2 and 3. No FID was published for them: the share that the heavy model answered stands for quality."""
    rows: Rows = []
    orders: dict[str, bool] = {}
    for cascade, peak in ((CASCADES[1], 34.0), (CASCADES[2], 6.5)):
        here = _swing(cascade, peak, quick)
        rows += here
        orders |= {f"{cascade.name}: {sentence}": holds for sentence, holds in _violation_orders(here).items()}
    note = (
        "paper: 1.4, 1.7 and 26 times fewer violations than static cascade, Proteus and Clipper-heavy "
        "(Cascade 2), 1.2, 1.9 and 52 times (Cascade 3)."
    )
    return Comparison(rows, orders, note)


def figure_7(quick: bool) -> Comparison:
    """FID against mean latency as the threshold moves: the discriminator's published table against a random router."""
    light_s, heavy_s, scoring_s = 0.10, 1.78, 0.01
    rows: Rows = []
    for tenth, known in enumerate(FID):
        share = tenth / 10
        cascade_s = light_s + scoring_s + (1 - share) * heavy_s
        random_s = share * light_s + (1 - share) * heavy_s
        chance = FID[0] + share * (FID[-1] - FID[0])
        rows.append(
            {
                "light_share": share,
                "fid": known,
                "latency_s": cascade_s,
                "random_fid": chance,
                "random_latency_s": random_s,
            }
        )
    inner = rows[1:-1]
    orders = {
        "the discriminator beats chance at every share": all(row["fid"] < row["random_fid"] for row in inner),
        "a mix beats both ends": min(FID) < min(FID[0], FID[-1]),
    }
    note = (
        "The curves of ResNet, ViT and EfficientNet trained on fakes are not published as numbers; the "
        "benchmark of the zoo's discriminators measures ours. Nothing is simulated here: the table is the "
        "paper's."
    )
    return Comparison(rows, orders, note)


def figure_8(quick: bool) -> Comparison:
    """Ablations of the allocator under the swinging load."""
    names = ("diffserve", "static-threshold", "aimd", "no-queueing-model")
    rows = _swing(CASCADES[0], 32.0, quick, names)
    found = _by_policy(rows)
    ours = found["diffserve"]
    orders = {
        "a static threshold costs quality": found["static-threshold"]["fid"] >= ours["fid"] - 0.05,
        "AIMD batching costs violations or quality": _worse(found["aimd"], ours),
        "no queueing model costs violations or quality": _worse(found["no-queueing-model"], ours),
    }
    note = (
        "paper: static threshold up to 19 % worse quality, AIMD up to 20 % more violations, no queueing model "
        "up to 12 % worse quality. 'Twice the execution delay' is read as e(b) + q(b) = 2 e(b): were q(b) = 2 "
        "e(b), the heavy model could never be used within this SLO."
    )
    return Comparison(rows, orders, note)


def _swing(
    cascade: Cascade,
    peak: float,
    quick: bool,
    names: Sequence[str] = ("diffserve", "static-cascade", "proteus", "clipper-light", "clipper-heavy"),
) -> Rows:
    rates = [share * peak for share in SWING]
    workload = cascade_load(rates, 25.0 if quick else 60.0, cascade.slo_s, SEED)
    settings = cascade_settings(cascade, rates[0], ANTICIPATED * peak, OVERPROVISION)
    return [_row(SERVING_POLICIES[name](settings), workload, cascade, pair=cascade.name) for name in names]


def _row(policy: ServingPolicy, workload: Workload, cascade: Cascade = CASCADES[0], **told: Any) -> dict[str, Any]:
    report, light = play(cascade_scenario(cascade, policy), workload, SEED, min(WARM_UP_S, workload.duration_s / 10))
    return {
        "policy": policy.name,
        **told,
        "violations": report.overall.violation_share,
        "fid": fid(report, light),
        "light_share": light,
        "p50_s": report.overall.latency_s.p50,
        "p99_s": report.overall.latency_s.p99,
    }


def _by_policy(rows: Rows) -> Mapping[str, dict[str, Any]]:
    return {row["policy"]: row for row in rows}


def _orders_under_swing(rows: Rows) -> dict[str, bool]:
    found = _by_policy(rows)
    return _violation_orders(rows) | {
        "DiffServe's FID is below the static cascade's": found["diffserve"]["fid"] <= found["static-cascade"]["fid"],
        "the static cascade's FID is below Proteus's": found["static-cascade"]["fid"] <= found["proteus"]["fid"],
        "Clipper-light has the highest FID": max(rows, key=lambda row: row["fid"])["policy"] == "clipper-light",
    }


def _violation_orders(rows: Rows) -> dict[str, bool]:
    share = {row["policy"]: row["violations"] for row in rows}
    return {
        "Clipper-light has fewest violations": share["clipper-light"] == min(share.values()),
        "Clipper-heavy has most violations": share["clipper-heavy"] == max(share.values()),
        "DiffServe has fewer violations than the static cascade": share["diffserve"] <= share["static-cascade"],
        "DiffServe has fewer violations than Proteus": share["diffserve"] <= share["proteus"],
    }


def _dominated(rows: Rows) -> bool:
    """Whether a point of Proteus is better than every point of DiffServe in both quality and violations."""
    ours = [row for row in rows if row["policy"] == "diffserve"]
    theirs = [row for row in rows if row["policy"] == "proteus"]
    return any(
        all(row["fid"] < our["fid"] - 0.05 and row["violations"] < our["violations"] - 0.005 for our in ours)
        for row in theirs
    )


def _worse(row: dict[str, Any], than: dict[str, Any]) -> bool:
    return bool(row["violations"] >= than["violations"] or row["fid"] >= than["fid"])
