"""One allocation problem for every way in which a picture can be painted, as a mixed integer linear program.

A *route* is one of those ways: the heavy model from noise, a cascade at one threshold, a latent resumed, an image
refined by a small model, each with or without adapters. A *component* is what a device holds: a model or a
ControlNet. A *pool* is a component in batches of one size on devices of
one kind; a *course* is a route through certain pools that keeps the SLO.

    max  sum_i rate_i * (served_weight + quality of its route - price of its device-seconds)
                                                                      i: courses; p: pools; n_p: units of a pool
    rate     sum of rate_i over the courses of a start <= the demand of that start
    work     sum_i rate_i * work_ip + aside_p <= (n_p - new_p * load_s / horizon_s) * T_p
    aside    sum of aside_p over the pools of a component = what routes need of it beside their course
    new      sum of new_p over a component's pools on a kind of device >= their units - those that are held
    devices  sum of n_p over the pools of a kind <= the devices of that kind

A device that loads a component carries nothing for `load_s` of the `horizon_s` that the demand is expected to hold: a
switch is made where it pays within the horizon. A device-second that a request takes, where it takes fewest, costs
`second_price` of quality. Demand beyond what can be carried in time is not served, the worst
route first. All latencies are known beforehand, so that nothing but the units is integer: that is what makes hundreds
of devices quick to plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pentimento.policies.serving.costs import BatchCost


@dataclass(frozen=True)
class Component:
    """What a device holds. `costs`: what batches cost, by the kinds of device that it fits on. `load_s`: seconds until
    it serves. `wait_s`: how long its requests wait for their batch."""

    name: str
    costs: Mapping[str, tuple[BatchCost, ...]]
    load_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True)
class Use:
    """How much of a component a route needs, in whole runs. `work`: of a mean request. `path`: of a request that needs
    all of it, whose latency counts; 0 for what runs beside it, such as a ControlNet."""

    component: str
    work: float
    path: float = 1.0


@dataclass(frozen=True)
class PaintingRoute:
    """A way to paint a request with that start. `quality` is that of its pictures on average, 0..1."""

    name: str
    start: str
    uses: tuple[Use, ...]
    quality: float

    @property
    def on_path(self) -> tuple[Use, ...]:
        """Return what its latency is made of, in its order."""
        return tuple(use for use in self.uses if use.path > 0.0)

    @property
    def path(self) -> tuple[Use, ...]:
        """Return the same without the work: routes with one path are in time together."""
        return tuple(Use(use.component, 0.0, use.path) for use in self.on_path)


@dataclass(frozen=True)
class JointProblem:
    """The numbers of the problem. `demand`: requests a second by start. `devices`: how many, by kind. `held`: units
    by (kind, component). `may_load`: False where devices keep what they hold, or are left idle. `rooms`: the starts
    of requests beside those that come, and what carrying one of them a second is worth, in quality: requests that
    are not there yet and may come before the next plan, and those that have come before and wait. `second_price`:
    how much better a request must be for each second of a device that it takes, 0..1."""

    demand: Mapping[str, float]
    devices: Mapping[str, int]
    components: Sequence[Component]
    routes: Sequence[PaintingRoute]
    slo_s: float
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)
    horizon_s: float = 60.0
    served_weight: float = 10.0
    may_load: bool = True
    rooms: Mapping[str, float] = field(default_factory=dict)
    second_price: float = 0.0

    @property
    def wanted(self) -> float:
        """Return the requests a second that there are."""
        return sum(rate for start, rate in self.demand.items() if start not in self.rooms)

    def worth(self, route: PaintingRoute) -> float:
        """Return what a request a second by that route adds to the objective."""
        if route.start in self.rooms:
            return self.rooms[route.start]
        return self.served_weight + route.quality - self.second_price * self.device_seconds(route)

    def device_seconds(self, route: PaintingRoute) -> float:
        """Return the seconds of devices that a mean request takes by that route, where it takes fewest."""
        return sum(use.work * self._seconds_of_run.get(use.component, 0.0) for use in route.uses)

    @cached_property
    def _seconds_of_run(self) -> Mapping[str, float]:
        return {
            component.name: 1.0 / max(cost.throughput for costs in found for cost in costs)
            for component in self.components
            if (found := [costs for costs in component.costs.values() if costs])
        }

    @property
    def bound(self) -> float:
        """Return what no plan's objective exceeds: all are served, each by the best way for its start."""
        best: dict[str, float] = {}
        for route in self.routes:
            best[route.start] = max(self.worth(route), best.get(route.start, 0.0))
        return sum(rate * best[start] for start, rate in self.demand.items() if start in best)


@dataclass(frozen=True, order=True)
class PlannedPool:
    """A component in batches of one size on devices of one kind."""

    component: str
    kind: str
    batch_size: int


@dataclass(frozen=True)
class Course:
    """A route through certain pools, those of its path in their order."""

    route: str
    pools: tuple[PlannedPool, ...]


@dataclass(frozen=True)
class JointSolution:
    """The units of each pool and the requests a second of each course, without those that have none. `is_optimal` is
    False where a time limit ended the search."""

    units: Mapping[PlannedPool, int]
    rates: Mapping[Course, float]
    served_share: float
    objective: float
    is_optimal: bool = True
