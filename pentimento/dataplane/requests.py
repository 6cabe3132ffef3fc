"""One admitted request, and where it is."""

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
    """Where an admitted request is. The first three wait for a worker and count against the queue's bound."""

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
    """One admitted request. `losses` counts workers lost under it, `excluded` names them as (id, generation).

    `picture_token`: the attempt whose picture is
    scored or committed, 0 before; `fallback_token`: the one whose picture an earlier stage of the cascade leaves.
    `cascade_name` is the plan's, empty for the operator's own; `start` the kind of start of the stage that it is in.
    `has_inputs`: it came with images, which are fetched and decoded before an attempt begins. `planned` as in
    RequestArrived; `asked_anew`: where plans sent requests when its stages were asked for anew.
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
    # An attempt at this stage has its route in the journal.
    route_pinned: bool = False
    spare: tuple[RouteOption, ...] = ()
    option: int = 0
    pair: bool = False
    attempt_number: int = 0
    fencing_token: int = 0
    worker_id: str = ""
    # Of its newest attempt; never while that prepares its inputs.
    started_at: float = 0.0
    started_load: int = 1
    # Its attempt took a place that another one was about to leave, and waits for that at the worker.
    came_early: bool = False
    # When its attempt is expected to give its credit back; None while it has none.
    ends_at: float | None = None
    picture_token: int = 0
    fallback_token: int = 0
    # A later stage paints it because an earlier one would have been too late.
    stood_in: bool = False
    degraded: str = ""
    # What its prompt tells of the first stage's image.
    foreseen: PromptForesight | None = None
    # Which of its steps may be left out; what its newest attempt does of them, 0 for all its work.
    thinning: ThinningOffer = WHOLE
    thinned_steps: tuple[int, ...] = ()
    thinned_work: float = 0.0
    # Of its newest attempt: the first step that it was seen at, and when; None before.
    seen: tuple[int, float] | None = None
    losses: int = 0
    excluded: frozenset[tuple[str, int]] = frozenset()
    suspect_until: float = 0.0
    # How it ends, once that is decided: what the journal is asked to write.
    ending: PersistEnd | None = None
    retry_after_ms: int = 0
    # How often the journalling of its end has broken down.
    end_failures: int = 0

    @property
    def attempt_key(self) -> AttemptKey:
        """The newest attempt: request id and fencing token."""
        return (self.request_id, self.fencing_token)

    @property
    def least_work(self) -> float:
        """Its work with as many steps left out as may be."""
        return self.work * self.thinning.least_share if self.thinning.options else self.work

    @property
    def attempt_work(self) -> float:
        """What its newest attempt has to do."""
        return self.thinned_work or self.work

    @property
    def lane_key(self) -> LaneKey:
        """The lane in which it waits: pool and model digest."""
        return (self.pool, self.model_digest)

    @property
    def has_next_stage(self) -> bool:
        """Whether a later stage of the cascade may follow."""
        return self.cascade_stage + 1 < len(self.cascade)
