"""Count network bytes and loading seconds of simulated nodes on the production mix, by dispatcher and eviction rule.

    python -m benchmarks.component_cache

The mix has MLoRA's printed shares, ControlNets and drift; `lab.workloads.components` draws sizes and load seconds.
Each node holds 64 GB of components, loads the absent ones, and generates for 24 s (MLoRA, section 3.2: 23.9 s).
Arrivals are Poisson at half of the load that nodes carry without any loading. Loads come from the remote store. The
first quarter of the requests fills the nodes and does not count.

Ours is Eq. 10 with dispatch by residency, where a load counts twice: itself, and the later load of the components that
it displaces. The baselines are LRU with nodes in turn, and LRU with our dispatch where a load counts once. Classes are
MLoRA's: four replicas of the hot models by consistent hashing, one of the others; "for 12 s", any node once these are
busy for longer. Eq. 4 is its score of instances.
Intervals come from blocks of 100 consecutive requests, resampled with replacement.

Then three live workers: real processes that sleep for compute and loads, one model, and requests of the mix with LoRAs,
eleven times as fast (an image takes 0.5 s, a LoRA 0.42 s in the mean). Each keeps LoRAs in 2 GB, a tenth of all. Ours
is one suite; the baseline is three suites of one worker with LRU, requests in turn. Workers measure their loads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

import numpy as np

from benchmarks.suites.lora_workers import WORKERS, played_on_workers, requests_with_loras
from lab.runs.measure import Figure, Options, Target, at_least, informative, measured, parse_options, publish
from lab.studies.component_nodes import ByClass, ByResidency, ByScore, Dispatcher, RoundRobin, Served, replay_on_nodes
from lab.studies.component_rules import Lru
from lab.workloads.components import GB, ComponentUse, uses_of_choices
from lab.workloads.production import MLORA_DRIFTING, choose
from pentimento.domain.components import ComponentRule
from pentimento.policies.components import Utility

NODE_COUNTS = (8, 16)
NODE_GB, RUN_S, LOAD, BLOCK = 64, 24.0, 0.5, 100
BASELINE, SAME_DISPATCH = "LRU, nodes in turn", "LRU, residency"


@dataclass(frozen=True)
class CacheSide:
    """Name a dispatcher with a rule."""

    name: str
    dispatch: Callable[[], Dispatcher]
    rule: Callable[[], ComponentRule]

    def served(self, uses: Sequence[ComponentUse], node_count: int) -> list[Served]:
        """Return the requests after the first quarter."""
        all_served = replay_on_nodes(
            uses,
            self.dispatch(),
            self.rule,
            node_count=node_count,
            budget_bytes=NODE_GB * GB,
            run_s=RUN_S,
        )
        return all_served[len(uses) // 4 :]


OURS = CacheSide("ours", lambda: ByResidency(2.0), Utility)
SIDES = (
    OURS,
    CacheSide(BASELINE, RoundRobin, Lru),
    CacheSide(SAME_DISPATCH, ByResidency, Lru),
    CacheSide("ours, a load counts once", ByResidency, Utility),
    CacheSide("Eq. 4", lambda: ByScore(RUN_S), Utility),
    CacheSide("classes", ByClass, Utility),
    CacheSide("classes for 12 s", lambda: ByClass(12.0), Utility),
)


def mix_of(node_count: int, count: int) -> list[ComponentUse]:
    rng = np.random.default_rng(7)
    times_s = np.cumsum(rng.exponential(RUN_S / node_count / LOAD, count))
    return uses_of_choices(choose(MLORA_DRIFTING, count, rng), times_s.tolist())


def figures_of(node_count: int, served: Mapping[str, Sequence[Served]]) -> list[Figure]:
    found = []
    targets = {(BASELINE, "bytes"): 0.85, (BASELINE, "seconds"): 0.80, (SAME_DISPATCH, "seconds"): 0.10}
    for other in (BASELINE, SAME_DISPATCH):
        for what, of in (("bytes", _bytes), ("seconds", _seconds)):
            limit = targets.get((other, what))
            target = at_least(limit, "less") if limit else informative("less")
            found.append(_less(f"{node_count} nodes: {what} of loading, less than {other}", served, other, of, target))
    for name in served:
        latencies = [one.latency_s for one in served[name]]
        found.append(Figure(f"{node_count} nodes: mean latency, {name}", fmean(latencies), informative("s")))
        p99_s = quantiles(latencies, n=100)[-1]
        found.append(Figure(f"{node_count} nodes: p99 latency, {name}", p99_s, informative("s")))
        if name not in ("ours", BASELINE, SAME_DISPATCH):
            target = informative("less")
            title = f"{node_count} nodes: seconds of loading of {name}, less than {BASELINE}"
            found.append(_less(title, served, BASELINE, _seconds, target, name))
    return found


def _less(
    title: str,
    served: Mapping[str, Sequence[Served]],
    other: str,
    of: Callable[[Served], float],
    target: Target,
    name: str = "ours",
) -> Figure:
    pairs = list(zip(_blocks(served[name], of), _blocks(served[other], of), strict=True))
    return measured(title, pairs, _saved, target)


def _saved(pairs: Sequence[tuple[float, float]]) -> float:
    return 1.0 - sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)


def _blocks(served: Sequence[Served], of: Callable[[Served], float]) -> list[float]:
    return [sum(map(of, served[begin : begin + BLOCK])) for begin in range(0, len(served), BLOCK)]


def _bytes(one: Served) -> float:
    return float(one.loading.moved_bytes)


def _seconds(one: Served) -> float:
    return one.loading.seconds


def live(options: Options) -> list[Figure]:
    """Return the seconds that live workers load, less than LRU's in turn."""
    workload = requests_with_loras(40 if options.quick else 220)
    ours, theirs = played_on_workers(workload, 1), played_on_workers(workload, WORKERS)
    name, count = f"{WORKERS} live workers: seconds of loading", len(workload.arrivals)
    return [
        Figure(f"{name}, less than {BASELINE}", 1.0 - ours / theirs, at_least(0.80, "less"), count),
        Figure(f"{name}, ours", ours, informative("s"), count),
        Figure(f"{name}, {BASELINE}", theirs, informative("s"), count),
    ]


def run(options: Options) -> int:
    count = 2_000 if options.quick else 16_000
    figures = []
    for node_count in NODE_COUNTS:
        uses = mix_of(node_count, count)
        figures += figures_of(node_count, {side.name: side.served(uses, node_count) for side in SIDES})
    figures += live(options)
    figures.sort(key=lambda figure: figure.target.limit is None)
    return publish(options, figures, notes={"node_gb": NODE_GB, "run_s": RUN_S, "load": LOAD, "requests": count})


if __name__ == "__main__":
    raise SystemExit(run(parse_options("component_cache", __doc__)))
