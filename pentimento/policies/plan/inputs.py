"""Define the input and the decision of policies, which are pure functions between them.

A policy depends only on its input. It returns its memory (the integral of a PID controller, the time of the last
switch) in `Decision.memory`, and receives it again in `PlanInput.last`. This module has `hold_resident`, which lets
every worker keep its model; other modules of `policies.plan` have the other policies.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pentimento.domain.demand import NOTHING_KEPT, AdapterDemand, KeptQuality, StartShare
from pentimento.domain.fleet import (
    FollowedDeferral,
    Plan,
    PoolPlan,
    Replica,
    ReplicaKind,
    ReplicaReport,
    SteeredCount,
    WorkerAssignment,
)
from pentimento.domain.generation import PlanVersion
from pentimento.domain.thinned_steps import NO_STEPS, ThinnableSteps


@dataclass(frozen=True)
class ReplicaView:
    """Hold a live replica that is not draining. `report` is None until its first report. `on_disk`: digests of the
    components on its local disk; `works`: it finished a request a short time ago."""

    replica: Replica
    report: ReplicaReport | None = None
    on_disk: frozenset[str] = frozenset()
    works: bool = False


@dataclass(frozen=True)
class ModelDemand:
    """Hold the demand for a model since the last planning round.

    Arrivals per second; waiting requests, now and on average (`mean_queue_length`, None if only the newest count is
    known); `starts` of requests (step 0 is noise); `violation_count` of the SLO (late or dropped). `sent_on_per_s`:
    requests that a cascade sent to its next stage, scored or not. `confidences`, `thinnable`, `compared` and `hits` as
    in `PoolDemand`; `adapters`: requests for each.
    """

    model: str
    arrivals_per_s: float
    queue_length: int = 0
    starts: tuple[StartShare, ...] = ()
    violation_count: int = 0
    mean_queue_length: float | None = None
    sent_on_per_s: float = 0.0
    confidences: tuple[int, ...] = ()
    adapters: tuple[AdapterDemand, ...] = ()
    thinnable: ThinnableSteps = NO_STEPS
    compared: tuple[KeptQuality, ...] = ()
    hits: KeptQuality = NOTHING_KEPT


@dataclass(frozen=True)
class AllocationProfile:
    """Hold the measured cost of a model on a kind of device: seconds of a batch of that size, bytes held, seconds to
    load. `step_count`, `fixed_s`, `finish_s` and `estimated` as in `ModelCost`."""

    model: str
    device: str
    batch_size: int
    latency_s: float
    memory_bytes: int
    load_s: float = 0.0
    step_count: int = 0
    fixed_s: float = 0.0
    finish_s: float = 0.0
    estimated: bool = False

    def seconds_left(self, saved_share: float) -> float:
        """Return the seconds of a batch of requests that skip that share (0..1) of their steps. The fixed part of a
        request stays."""
        once_s = min(self.batch_size * self.fixed_s, self.latency_s)
        return once_s + (self.latency_s - once_s) * (1.0 - saved_share)


# The version of a plan that the controller has not numbered.
UNNUMBERED = PlanVersion()
NOTHING_PLANNED = Plan(UNNUMBERED)


@dataclass(frozen=True)
class Decision:
    """Hold a policy's plan, and its memory until its next decision. For people: `steered`, the worker count that the
    policy moves towards, and `deferrals`, f(t) of the planned cascades.

    `plan` lacks the rest of the fleet's facts: version, endpoints, placements. `memory` is a frozen value, which the
    policy receives again in `PlanInput.last`; it never leaves the process. A policy ignores the memory of another one.
    """

    plan: Plan = NOTHING_PLANNED
    memory: object = None
    steered: SteeredCount | None = None
    deferrals: tuple[FollowedDeferral, ...] = ()


@dataclass(frozen=True)
class PlanInput:
    """Hold all inputs of a policy. `now_s` is monotonic; `last` is the decision in force."""

    now_s: float
    replicas: tuple[ReplicaView, ...]
    demand: tuple[ModelDemand, ...] = ()
    profiles: tuple[AllocationProfile, ...] = ()
    last: Decision = Decision()

    def workers(self) -> tuple[Replica, ...]:
        """Return the UNet workers, ordered by instance id so that equal fleets give equal decisions."""
        workers = (view.replica for view in self.replicas if view.replica.kind is ReplicaKind.UNET_WORKER)
        return tuple(sorted(workers, key=lambda worker: worker.instance_id))

    def able_models(self) -> frozenset[str]:
        """Return the models that at least one worker can hold."""
        return frozenset(model for worker in self.workers() for model in worker.models)

    def holder_count(self, *models: str) -> int:
        """Return the number of workers that can hold any of `models`. Workers of another suite do not count."""
        return sum(not set(models).isdisjoint(worker.models) for worker in self.workers())

    def planned_models(self) -> dict[str, str]:
        """Return the model of every worker once the plan in force is carried out, by instance id.

        A running load counts as done. A model that the worker can no longer hold does not count: the worker was
        restarted, or has other weights under that name. Workers without a model are skipped.
        """
        workers = {worker.instance_id: worker for worker in self.workers()}
        held = {name: worker.held_model for name, worker in workers.items() if worker.held_model}
        ordered = ((one.worker_id, one.model) for one in self.last.plan.assignments)
        return held | {name: model for name, model in ordered if name in workers and model in workers[name].models}


Policy = Callable[[PlanInput], Decision]


def hold_resident(context: PlanInput) -> Decision:
    """Assign to every worker the model that it holds, one pool a model. A worker without a model is skipped."""
    assignments = tuple(
        WorkerAssignment(worker.instance_id, worker.address, worker.held_model, worker.generation)
        for worker in context.workers()
        if worker.held_model
    )
    workers: dict[str, list[str]] = {}
    for one in assignments:
        workers.setdefault(one.model, []).append(one.worker_id)
    pools = tuple(PoolPlan(model, model, tuple(workers[model])) for model in sorted(workers))
    return Decision(Plan(UNNUMBERED, assignments, pools))


def decide(allocator: Policy, context: PlanInput) -> Decision:
    """Return the allocator's decision. Without workers it is not called: no request is rejected then, and the memory
    stays until a worker joins."""
    return allocator(context) if context.workers() else Decision(memory=context.last.memory)
