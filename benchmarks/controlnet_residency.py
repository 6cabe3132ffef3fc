"""Count the loads of ControlNets that a resident set of 1 to 8 avoids on the production mixes of Katz (section 3.1).

    python -m benchmarks.controlnet_residency

Katz: five of service A's 47 ControlNets take 98 % of the calls, eight of service B's 94 take 95 %. The calls of both
mixes go one after the other through the policy of controlnet_svc (`pentimento.policies.residency`), through LRU and
through LFU. In a second log popularity changes after half the requests: all ControlNets of a service exchange their
places. Two bounds need the future: the share served by the N most called, held all the time with one more slot for the
rest; and Belady's policy (1966), which evicts the ControlNet called latest and is optimal for any policy that must load
each call. All ControlNets have one size and one load time, as Katz's do. A call hits if its ControlNet is resident on
arrival.

Then the same requests on four replicas with memory for 2, 4 or 8 ControlNets each, with and without the places of a
plan (`suites.planned_controlnets`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import numpy as np

from benchmarks.suites.planned_controlnets import PlayedCalls, played_on_replicas
from lab.runs.measure import Figure, Options, at_least, at_most, informative, measured, parse_options, publish
from lab.workloads.production import KATZ_A, KATZ_B, ProductionMix, choose
from pentimento.domain.components import Loadable
from pentimento.policies.components import HALF_LIFE_USES
from pentimento.policies.residency import ResidentSet

SIZES = range(1, 9)
SHOWN_SIZES = (2, 5, 8)
PLANNED_SIZES = (2, 4, 8)
# The size at which Katz sees no more loading (section 3.1, figure 6), and the hits asked for there.
PUBLISHED = {"A": (KATZ_A, 5, 0.95), "B": (KATZ_B, 8, 0.95)}
# Hits that are a call in a thousand fewer are equal: while LFU counts for ever, ours forgets.
EQUAL = 0.001
Calls = Sequence[str]


def calls_of(mix: ProductionMix, count: int, seed: int) -> Calls:
    choices = choose(mix, count, np.random.default_rng(seed))
    return [name for choice in choices for name in choice.controlnets]


def with_change(calls: Calls, names: int, seed: int) -> Calls:
    """Return the calls with the ControlNets exchanging their places in the later half."""
    places = np.random.default_rng(seed).permutation(names)
    half = len(calls) // 2
    return [*calls[:half], *(f"controlnet-{places[int(name.rpartition('-')[2])]:03d}" for name in calls[half:])]


def ours(calls: Calls, places: int) -> float:
    held, hits = ResidentSet(places), 0
    for name in calls:
        called = Loadable(name, memory_bytes=1, load_s=1.0)
        hits += name in held.names
        held.use(called)
        for leaving in held.leaving_for(called, ()) or ():
            held.remove(leaving)
        if name not in held.names:
            held.add(called)
    return hits / len(calls)


def lru(calls: Calls, places: int) -> float:
    held: OrderedDict[str, None] = OrderedDict()
    hits = 0
    for name in calls:
        hits += name in held
        held[name] = None
        held.move_to_end(name)
        if len(held) > places:
            held.popitem(last=False)
    return hits / len(calls)


def lfu(calls: Calls, places: int) -> float:
    held: set[str] = set()
    uses: Counter[str] = Counter()
    hits = 0
    for name in calls:
        hits += name in held
        uses[name] += 1
        if name not in held and len(held) == places:
            held.remove(min(held, key=lambda other: (uses[other], other)))
        held.add(name)
    return hits / len(calls)


def foreknown(calls: Calls, places: int) -> float:
    """Return Belady's hit share: evict the resident ControlNet that is called latest."""
    following, later = [0] * len(calls), dict[str, int]()
    for place in range(len(calls) - 1, -1, -1):
        following[place] = later.get(calls[place], len(calls))
        later[calls[place]] = place
    held: dict[str, int] = {}
    hits = 0
    for name, called_next in zip(calls, following, strict=True):
        hits += name in held
        if name not in held and len(held) == places:
            del held[max(held, key=lambda other: (held[other], other))]
        held[name] = called_next
    return hits / len(calls)


def most_called(calls: Calls, places: int) -> float:
    return sum(count for _, count in Counter(calls).most_common(places)) / len(calls)


POLICIES: dict[str, Callable[[Calls, int], float]] = {
    "controlnet_svc": ours,
    "LRU": lru,
    "LFU": lfu,
    "the most called, known beforehand": most_called,
    "all calls known beforehand": foreknown,
}


def figures_of(service: str, log: str, runs: Sequence[Calls]) -> list[Figure]:
    _, published_places, share = PUBLISHED[service]
    found = {
        places: {name: [play(calls, places) for calls in runs] for name, play in POLICIES.items()} for places in SIZES
    }
    figures = []
    for places in SHOWN_SIZES:
        for policy, hits in found[places].items():
            has_target = log == "constant" and policy == "controlnet_svc" and places == published_places
            name = f"service {service}, {log} popularity, {places} resident, {policy}"
            figures.append(measured(name, hits, fmean, at_least(share) if has_target else informative()))
    name = f"service {service}, {log} popularity, hits above the better of LRU and LFU, least of all sizes"
    above = [min(_above(of[place] for of in found[size].values()) for size in SIZES) for place in range(len(runs))]
    return [*figures, measured(name, above, fmean, at_least(-EQUAL if log == "constant" else 0.0))]


def planned_figures(count: int, seeds: int) -> list[Figure]:
    """Return the calls that wait for a load with a plan over those without, and the loads ahead of calls."""
    pairs = []
    for mix, _, _ in PUBLISHED.values():
        for places in PLANNED_SIZES:
            for seed in range(seeds):
                requests = [one.controlnets for one in choose(mix, count, np.random.default_rng(seed))]
                pairs.append(tuple(played_on_replicas(requests, places, is_planned) for is_planned in (True, False)))
    ahead = [planned.ahead / planned.calls for planned, _ in pairs]
    return [
        measured("all sizes: calls that wait, planned ÷ not", pairs, _waited, at_most(1.0)),
        measured("all sizes: loads ahead of calls by a plan, per call", ahead, fmean, informative()),
    ]


def _waited(pairs: Sequence[tuple[PlayedCalls, ...]]) -> float:
    return sum(planned.waited for planned, _ in pairs) / sum(without.waited for _, without in pairs)


def _above(hits: Iterable[float]) -> float:
    ours, lru, lfu, *_ = hits
    return ours - max(lru, lfu)


def run(options: Options) -> int:
    count, seeds = (2_000, 2) if options.quick else (10_000, 5)
    figures = []
    for service, (mix, _, _) in PUBLISHED.items():
        constant = [calls_of(mix, count, seed) for seed in range(seeds)]
        changed = [with_change(calls, mix.controlnets.count, seed) for seed, calls in enumerate(constant)]
        for log, runs in (("constant", constant), ("changed", changed)):
            figures += figures_of(service, log, runs)
    figures += planned_figures(1_000 if options.quick else 4_000, seeds)
    figures.sort(key=lambda figure: figure.target.limit is None)
    return publish(options, figures, notes={"requests": count, "seeds": seeds, "half_life_uses": HALF_LIFE_USES})


if __name__ == "__main__":
    raise SystemExit(run(parse_options("controlnet_residency", __doc__)))
