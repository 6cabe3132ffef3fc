"""Describe one admitted request and its phase."""

from dataclasses import dataclass
from enum import Enum

from pentimento.dataplane.effects import PersistEnd
from pentimento.dataplane.events import AttemptKey, RouteOption
from pentimento.domain.foresight import PromptForesight
from pentimento.policies.adapter_needs import NO_NEEDS, AdapterNeeds
from pentimento.policies.plan.entry import NOISE
from pentimento.policies.thinning import WHOLE, ThinningOffer

LaneKey = tuple[str, str]
"""(pool, model digest): a route is pinned to a digest, so only workers that hold it may serve it."""


class Phase(Enum):
    """Name the phases of an admitted request. The first three wait for a worker and count against the queue's limit."""

    ACCEPTING = "accepting"
    ROUTING = "routing"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SCORING = "scoring"
    COMMITTING = "committing"
    ENDING = "ending"
    ORPHANED = "orphaned"

    # Compared by identity anyway; Enum's own hash is a Python function that every set of phases would call.
    __hash__ = object.__hash__


WAITING = frozenset({Phase.ACCEPTING, Phase.ROUTING, Phase.QUEUED})
ATTEMPTED = frozenset({Phase.STARTING, Phase.RUNNING})


@dataclass(slots=True)
class Request:
    """Hold the state of an admitted request. `losses` counts workers lost under it, `excluded` names them as (id,
    generation).

    `picture_token`: the attempt with the image to score or commit, 0 before; `fallback_token`: the attempt with the
    fallback image of an earlier stage. `cascade_name` is the plan's, empty for the operator's own; `start` the kind of
    start of its current stage. `has_inputs`: it came with images, which are fetched and decoded before an attempt
    begins. `planned` as in RequestArrived; `asked_anew`: `PlanIndex.entered` when it last requested new stages.
    """

    request_id: str
    tenant: str
    pool: str
    work: float
    deadline: float
    cascade: tuple[str, ...] = ()
    cascade_stage: int = 0
    cascade_name: str = ""
    start: str = NOISE
    needs: AdapterNeeds = NO_NEEDS
    has_inputs: bool = False
    planned: bool = False
    asked_anew: frozenset[str] = frozenset()
    phase: Phase = Phase.ACCEPTING
    model_digest: str = ""
    # The journal has its route, from an attempt at this stage.
    route_pinned: bool = False
    spare: tuple[RouteOption, ...] = ()
    option: int = 0
    pair: bool = False
    attempt_number: int = 0
    fencing_token: int = 0
    worker_id: str = ""
    # Set by its newest attempt; never while that prepares its inputs.
    started_at: float = 0.0
    started_load: int = 1
    # Its attempt took a batch slot that another is about to free, and waits for it at the worker.
    came_early: bool = False
    # When its attempt is expected to free its credit; None without one.
    ends_at: float | None = None
    picture_token: int = 0
    fallback_token: int = 0
    # A later stage runs it because an earlier one would have been too late.
    stood_in: bool = False
    degraded: str = ""
    # Prediction of the first stage's image from its prompt.
    foreseen: PromptForesight | None = None
    # Steps that it may skip; the steps and the work of its newest attempt, 0 for all its work.
    thinning: ThinningOffer = WHOLE
    thinned_steps: tuple[int, ...] = ()
    thinned_work: float = 0.0
    # First reported step of its newest attempt, and its time; None before.
    seen: tuple[int, float] | None = None
    losses: int = 0
    excluded: frozenset[tuple[str, int]] = frozenset()
    suspect_until: float = 0.0
    # Its end, once decided: the effect that journals it.
    ending: PersistEnd | None = None
    retry_after_ms: int = 0
    # Failures of journalling its end.
    end_failures: int = 0

    @property
    def attempt_key(self) -> AttemptKey:
        """Return the newest attempt: request id and fencing token."""
        return (self.request_id, self.fencing_token)

    @property
    def least_work(self) -> float:
        """Return its work with the most steps skipped that it may skip."""
        return self.work * self.thinning.least_share if self.thinning.options else self.work

    @property
    def attempt_work(self) -> float:
        """Return the work of its newest attempt."""
        return self.thinned_work or self.work

    @property
    def lane_key(self) -> LaneKey:
        """Return the lane of its queue: pool and model digest."""
        return (self.pool, self.model_digest)

    @property
    def has_next_stage(self) -> bool:
        """Return whether a later stage of the cascade may follow."""
        return self.cascade_stage + 1 < len(self.cascade)
