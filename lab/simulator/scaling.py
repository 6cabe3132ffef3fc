"""Simulate a fleet of a changing size: pods take time to start, and drain before they stop.

A scaler decides every `SYNC_S`, behind the tolerance, limit of growth and window for scaling down of Kubernetes'
HorizontalPodAutoscaler (HPA). The lowest free ordinals start, the highest ones stop, as in a StatefulSet.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from lab.emulation.device import EmulatedDevice
from lab.emulation.jobs import EmulatedJob
from lab.simulator.scenario import Scenario
from lab.simulator.simulation import Simulation
from lab.workloads import Workload
from pentimento.dataplane import events
from pentimento.dataplane.events import AttemptKey
from pentimento.policies.plan.inputs import PlanInput
from pentimento.policies.replica_counts import ReplicaCounts, ScaledTarget

# The HPA's period and tolerance (kube-controller-manager's defaults), and the growth that all scalers here may have:
# 900 % a period.
SYNC_S, TOLERANCE, MOST_GROWTH = 15.0, 0.1, 10.0
# The utilisation is sampled as often, over as long as metrics pipelines average it.
SAMPLE_S, AVERAGED_SAMPLES = 5.0, 6


@dataclass(frozen=True)
class ScalingLimits:
    """Hold the devices at the start and the most, and the seconds until a new one serves."""

    first: int
    most: int
    start_s: float


@dataclass(frozen=True)
class FleetLoad:
    """Hold the measurements of scalers: pods, serving pods and their mean utilisation (0..1), and requests that wait or
    run."""

    now_s: float
    pod_count: int
    serving_count: int
    utilisation: float
    request_count: int
    given: PlanInput


class FleetSizer(Protocol):
    """Decide how many pods there are to be."""

    def look(self, load: FleetLoad) -> None:
        """Take a sample, every SAMPLE_S. Changes state."""

    def wanted(self, load: FleetLoad) -> int:
        """Return the number of pods, before limits. Changes state."""


@dataclass
class ByUtilisation:
    """The HPA on the devices' utilisation. Pods that do not serve yet count as idle when it scales up."""

    target: float

    def look(self, load: FleetLoad) -> None:
        """Take no sample: the load has an average."""

    def wanted(self, load: FleetLoad) -> int:
        """Return the HPA's proportion."""
        if not load.serving_count:
            return load.pod_count
        ratio, counted = load.utilisation / self.target, load.serving_count
        if ratio > 1.0 and load.pod_count > load.serving_count:
            ratio, counted = ratio * load.serving_count / load.pod_count, load.pod_count
            if ratio < 1.0:
                return load.pod_count
        if abs(ratio - 1.0) <= TOLERANCE:
            return load.pod_count
        return math.ceil(ratio * counted)


@dataclass
class ByQueueLength:
    """KEDA on the requests that wait or run, with that many as the target of a pod."""

    target: float

    def look(self, load: FleetLoad) -> None:
        """Take no sample: the newest count is used, as of a queue."""

    def wanted(self, load: FleetLoad) -> int:
        """Return the HPA's quotient."""
        return quotient(load.request_count, self.target, load.pod_count)


@dataclass
class ByController:
    """KEDA on the controller's counts, by the live code."""

    model: str
    slo_s: float
    dwell_s: float
    start_s: float
    _counts: ReplicaCounts = field(init=False)

    def __post_init__(self) -> None:
        self._counts = ReplicaCounts(self.slo_s)

    def look(self, load: FleetLoad) -> None:
        """Follow a planning round, as the live controller does."""
        assigned = {one.worker_id: one.model for one in load.given.last.plan.assignments}
        self._counts.look(load.now_s, load.given, frozenset({self.model}), assigned)

    def wanted(self, load: FleetLoad) -> int:
        """Return the HPA's quotient of the wanted number."""
        target = ScaledTarget("unet_worker", (self.model,), 0.0, self.dwell_s, self.start_s)
        return quotient(self._counts.wanted(load.now_s, target), 1.0, load.pod_count)


def quotient(value: float, target: float, pod_count: int) -> int:
    """Return the HPA's number of pods for an external metric with an average target."""
    if pod_count and abs(value / (target * pod_count) - 1.0) <= TOLERANCE:
        return pod_count
    return math.ceil(value / target)


class ScaledSimulation(Simulation):
    """Simulate a workload on a fleet that a scaler sizes. `pod_s`: seconds of all pods, from their order to their end,
    within the workload's time. `window_s`: the HPA's stabilisation window of scaling down."""

    def __init__(
        self,
        scenario: Scenario,
        workload: Workload,
        rng: Random,
        scaler: FleetSizer,
        limits: ScalingLimits,
        window_s: float = 0.0,
    ) -> None:
        super().__init__(scenario, workload, rng)
        self._scaler, self._limits, self._window_s = scaler, limits, window_s
        self._ends_s = workload.arrivals[-1].at_s
        self.pod_s = 0.0
        # The pods after each decision, and `pod_s` at it.
        self.counts: list[tuple[float, int]] = []
        self._spent: list[tuple[float, float]] = []
        self._pods = dict(self._fleet.devices.items())
        # Pods, whether they serve or start; the others do not exist, or end.
        self._present = set(list(self._pods)[: limits.first])
        self._order = list(self._pods)
        self._counted_s = 0.0
        self._samples: deque[float] = deque(maxlen=AVERAGED_SAMPLES)
        self._wanted: deque[tuple[float, int]] = deque()
        for name, device in self._pods.items():
            if name not in self._present:
                device.lose()
        self._agenda.at(SAMPLE_S, self._sample)
        self._agenda.at(SYNC_S, self._sync)

    def job_finished(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        super().job_finished(device, job)
        self._end_if_empty(device)

    def job_stopped(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        super().job_stopped(device, job)
        self._end_if_empty(device)

    def job_dropped(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        super().job_dropped(device, job)
        self._end_if_empty(device)

    def _sample(self, _: None) -> None:
        serving = [device for device in self._pods.values() if not device.lost and not device.retiring]
        if serving:
            self._samples.append(sum(device.running_count > 0 for device in serving) / len(serving))
        self._scaler.look(self._load())
        self._again(SAMPLE_S, self._sample)

    def _sync(self, _: None) -> None:
        now_s, count = self._agenda.now, len(self._present)
        wanted = min(max(self._scaler.wanted(self._load()), 1), self._limits.most, math.ceil(count * MOST_GROWTH))
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - self._window_s:
            self._wanted.popleft()
        self._scale_to(max(wanted, min(count, max(number for _, number in self._wanted))))
        self._again(SYNC_S, self._sync)

    def _again(self, after_s: float, action: Callable[[None], None]) -> None:
        if self._agenda.now + after_s <= self._ends_s:
            self._agenda.at(self._agenda.now + after_s, action)

    def _load(self) -> FleetLoad:
        pools = self.dataplane.state.pools.values()
        return FleetLoad(
            self._agenda.now,
            len(self._present),
            sum(not device.lost and not device.retiring for device in self._pods.values()),
            sum(self._samples) / max(len(self._samples), 1),
            sum(pool.waiting_count + pool.running_count for pool in pools),
            self._controller.given,
        )

    def _scale_to(self, count: int) -> None:
        self._count_pods()
        free = [name for name in self._order if name not in self._present and self._pods[name].lost]
        for name in free[: max(count - len(self._present), 0)]:
            self._present.add(name)
            self._agenda.at(self._agenda.now + self._limits.start_s, self._serve, name)
        for name in [name for name in reversed(self._order) if name in self._present][: len(self._present) - count]:
            self._present.discard(name)
            if not self._pods[name].lost:
                self._pods[name].retire()
                self._end_if_empty(self._pods[name])
        self.counts.append((self._agenda.now, len(self._present)))
        self._spent.append((self._agenda.now, self.pod_s))

    def _serve(self, name: str) -> None:
        if name in self._present and self._pods[name].lost:
            self._pods[name].revive()

    def _end_if_empty(self, device: EmulatedDevice[AttemptKey]) -> None:
        if device.retiring and not device.lost and device.is_empty:
            self._count_pods()
            generation = device.generation
            device.lose()
            self.submit(events.WorkerLost(device.worker_id, generation))

    def _count_pods(self) -> None:
        """Add the time since the last call, within the workload's: pods that drain still hold their devices."""
        now_s = min(self._agenda.now, self._ends_s)
        draining = sum(device.retiring and not device.lost for device in self._pods.values())
        self.pod_s += (now_s - self._counted_s) * (len(self._present) + draining)
        self._counted_s = now_s

    def finish(self) -> float:
        """Return `pod_s` after the run."""
        self._count_pods()
        return self.pod_s

    def pod_s_until(self, at_s: float) -> float:
        """Return `pod_s` at the last decision until then; 0 before the first one."""
        return max((pod_s for now_s, pod_s in self._spent if now_s <= at_s), default=0.0)
