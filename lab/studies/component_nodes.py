"""Replay a log of components on nodes with a tier each: what a dispatcher and an eviction rule load together.

A node serves one request after the other: it loads the absent components, then it generates for `run_s` seconds.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from lab.studies.component_log import Loading, SimulatedTier
from lab.workloads.components import ComponentUse
from pentimento.domain.components import ComponentRule


@dataclass
class Node:
    """Hold a node's tier, and the time at which it has served its requests."""

    tier: SimulatedTier
    free_s: float = 0.0

    def missing_s(self, use: ComponentUse) -> float:
        """Return the load seconds of the components that the node lacks."""
        return sum(one.load_s for one in use.components if one.name not in self.tier.held)

    def waits_s(self, use: ComponentUse) -> float:
        """Return the seconds of waiting for the node."""
        return max(self.free_s - use.at_s, 0.0)


Dispatcher = Callable[[Sequence[Node], ComponentUse], Node]


@dataclass
class RoundRobin:
    """Take the nodes in turn."""

    turn: int = 0

    def __call__(self, nodes: Sequence[Node], use: ComponentUse) -> Node:
        self.turn += 1
        return nodes[self.turn % len(nodes)]


@dataclass(frozen=True)
class ByResidency:
    """Take the node with the least cost: the seconds until it would start, and `loading_weight` times the load seconds.

    1 starts each request soonest. 2 counts that a load displaces components of about the same worth, which are loaded
    again later.
    """

    loading_weight: float = 1.0

    def __call__(self, nodes: Sequence[Node], use: ComponentUse) -> Node:
        return min(nodes, key=lambda node: node.waits_s(use) + self.loading_weight * node.missing_s(use))


@dataclass(frozen=True)
class ByScore:
    """Take the node with the least score of MLoRA's Eq. 4, with the paper's weights: queue and loads in runs of
    `run_s`, and whether the device is busy."""

    run_s: float
    queue: float = 0.2
    loads: float = 0.5
    busy: float = 0.3

    def __call__(self, nodes: Sequence[Node], use: ComponentUse) -> Node:
        return min(nodes, key=lambda node: self._score(node, use))

    def _score(self, node: Node, use: ComponentUse) -> float:
        runs = self.queue * node.waits_s(use) + self.loads * node.missing_s(use)
        return runs / self.run_s + self.busy * (node.waits_s(use) > 0.0)


@dataclass
class ByClass:
    """Place by MLoRA's classes (section 6.1.1): the most used 5 % of base models have `replicas` nodes by consistent
    hashing, all others one. Among them the node that would start first; any node if these are busy for longer than
    `patience_s`."""

    patience_s: float = inf
    replicas: int = 4
    points_per_node: int = 64
    counts: Counter[str] = field(default_factory=Counter)
    _ring: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, nodes: Sequence[Node], use: ComponentUse) -> Node:
        model = use.components[0].name
        self.counts[model] += 1
        hot = {name for name, _ in self.counts.most_common(max(len(self.counts) // 20, 1))}
        places = self._places(model, len(nodes), self.replicas if model in hot else 1)
        chosen = ByResidency()([nodes[place] for place in places], use)
        return chosen if chosen.waits_s(use) <= self.patience_s else ByResidency()(nodes, use)

    def _places(self, name: str, node_count: int, count: int) -> list[int]:
        if not self._ring:
            self._ring = sorted(
                (_hash(f"{node}/{point}"), node) for node in range(node_count) for point in range(self.points_per_node)
            )
        at = bisect(self._ring, (_hash(name), 0))
        ordered = dict.fromkeys(node for _, node in (*self._ring[at:], *self._ring[:at]))
        return list(ordered)[:count]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


@dataclass(frozen=True)
class Served:
    """Hold a request's loading, and its latency in seconds."""

    loading: Loading
    latency_s: float


def replay_on_nodes(
    uses: Sequence[ComponentUse],
    dispatch: Dispatcher,
    make_rule: Callable[[], ComponentRule],
    *,
    node_count: int,
    budget_bytes: int,
    run_s: float,
) -> list[Served]:
    """Return what became of each request, in order."""
    nodes = [Node(SimulatedTier(make_rule(), budget_bytes)) for _ in range(node_count)]
    served = []
    for use in uses:
        node = dispatch(nodes, use)
        began_s = max(node.free_s, use.at_s)
        loading = node.tier.serve(use)
        node.free_s = began_s + loading.seconds + run_s
        served.append(Served(loading, node.free_s - use.at_s))
    return served
