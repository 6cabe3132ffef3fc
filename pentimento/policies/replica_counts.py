"""Count the replicas that workers and services need, by the fleet that the controller sees.

    counts = ReplicaCounts(slo_s=5.0)
    counts.look(now_s, fleet, models, assigned)      # after each planning round
    counts.wanted(now_s, ScaledTarget("unet_worker", ("heavy",)))

Each target has a dwell window, which every round updates: the count does not depend on the number of calls.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pentimento.domain.fleet import ReplicaKind
from pentimento.policies.plan.inputs import AllocationProfile, ModelDemand, PlanInput, ReplicaView
from pentimento.policies.scaling import Averages, DwellWindow, RecentArrivals, needed_for_calls, needed_workers

EDGE = "edge"
# Edges have no token of the suite to register with: frontdoors report them.
SERVICES = frozenset({EDGE, *(kind.value for kind in ReplicaKind)})
WORKERS = ReplicaKind.UNET_WORKER.value
# Seconds before a count that is no longer needed falls, as of Kubernetes' autoscaler, and until a new worker serves.
DWELL_S, START_S = 300.0, 60.0
# Targets that are remembered; the one not asked about for longest is forgotten.
MOST_TARGETS = 256


@dataclass(frozen=True)
class ScaledTarget:
    """Name the replicas to count. Of workers: `models`, none for all, and `start_s`, the seconds until a new one
    serves. Of other services: `calls`, the running calls of one replica."""

    service: str
    models: tuple[str, ...] = ()
    calls: float = 0.0
    dwell_s: float = DWELL_S
    start_s: float = START_S


class ReplicaCounts:
    """Track targets. Times are monotonic seconds."""

    def __init__(self, slo_s: float) -> None:
        self._slo_s = slo_s
        self._fleet: PlanInput | None = None
        self.models: frozenset[str] = frozenset()
        # Costs by model, device and batch size, kept after the last worker of a model.
        self._costs: dict[tuple[str, str, int], AllocationProfile] = {}
        # The newest demand of each model.
        self._demand: dict[str, ModelDemand] = {}
        self._arrivals = RecentArrivals()
        self._calls = Averages()
        # Requests that wait, by model, and the plan's model of each worker.
        self._waiting: Counter[str] = Counter()
        self._assigned: Mapping[str, str] = {}
        self._windows: OrderedDict[ScaledTarget, DwellWindow] = OrderedDict()

    @property
    def knows_fleet(self) -> bool:
        """Return whether a round has been seen."""
        return self._fleet is not None

    def look(self, now_s: float, fleet: PlanInput, models: frozenset[str], assigned: Mapping[str, str]) -> None:
        """Update every target. Changes state. `models`: all that the settings or the fleet know; `assigned`: the
        plan's model of each worker."""
        self.models = models
        self._costs |= {(one.model, one.device, one.batch_size): one for one in fleet.profiles}
        if self._fleet is None or self._fleet.now_s != fleet.now_s:
            self._demand |= {one.model: one for one in fleet.demand}
            self._arrivals.update(now_s, {one.model: one.arrivals_per_s for one in fleet.demand})
        self._calls.update(now_s, {service: _calls(fleet, service) for service in SERVICES})
        self._fleet = replace(fleet, profiles=tuple(self._costs.values()))
        self._waiting = _waiting(fleet.replicas)
        moves = [(self._assigned.get(worker, model), model) for worker, model in assigned.items()]
        self._assigned = assigned
        for target, window in self._windows.items():
            window.update(now_s, self._needed(target))
            # A move between two models of one target does not change its number of workers.
            if sum((after in target.models) - (before in target.models) for before, after in moves):
                window.hold(now_s)

    def note_waiting(self, now_s: float, replicas: tuple[ReplicaView, ...]) -> bool:
        """Update the targets without replicas by the newest reports, and return whether one needs a replica. Changes
        state."""
        if self._fleet is None:
            return False
        self._fleet = replace(self._fleet, replicas=replicas)
        self._waiting = _waiting(replicas)
        idle = [(target, window) for target, window in self._windows.items() if window.wanted == 0]
        return any([window.update(now_s, self._needed(target)) > 0 for target, window in idle])

    def wanted(self, now_s: float, target: ScaledTarget) -> int:
        """Return the replicas that the target needs; a new target begins with the number that runs. Changes state."""
        window = self._windows.get(target)
        if window is None:
            window = DwellWindow(target.dwell_s, now_s, self._live_count(target))
            window.update(now_s, self._needed(target))
            self._windows[target] = window
            if len(self._windows) > MOST_TARGETS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(target)
        return window.wanted

    def _needed(self, target: ScaledTarget) -> int:
        assert self._fleet is not None
        if target.service != WORKERS:
            return needed_for_calls(self._calls.value(target.service), target.calls)
        models = target.models or tuple(sorted(self.models))
        fleet = replace(self._fleet, demand=tuple(self._demand.values()))
        return needed_workers(fleet, models, self._slo_s, self._arrivals, self._waiting, target.start_s)

    def _live_count(self, target: ScaledTarget) -> int:
        assert self._fleet is not None
        if target.service == EDGE:
            # With cells an edge calls several frontdoors.
            return max((view.report.edge_count for view in self._fleet.replicas if view.report), default=0)
        live = [view.replica for view in self._fleet.replicas if view.replica.kind.value == target.service]
        return sum(not target.models or one.held_model in target.models for one in live)


def _calls(fleet: PlanInput, service: str) -> float:
    """Return the calls that run or wait at the live replicas of a service; of edges, their calls at frontdoors."""
    if service == EDGE:
        return float(sum(view.report.edge_call_count for view in fleet.replicas if view.report is not None))
    reports = [view.report for view in fleet.replicas if view.replica.kind.value == service and view.report is not None]
    return float(sum(report.running_count + report.queue_length for report in reports))


def _waiting(replicas: Iterable[ReplicaView]) -> Counter[str]:
    """Return the requests that wait at frontdoors and at workers, by model and by the newest reports."""
    counts: Counter[str] = Counter()
    for view in replicas:
        if view.report is None:
            continue
        for pool in view.report.demand:
            counts[pool.model] += pool.queue_length
        if view.replica.kind is ReplicaKind.UNET_WORKER:
            counts[view.replica.held_model] += view.report.queue_length
    return counts
