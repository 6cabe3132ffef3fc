"""Define the parts of a world around a dataplane: workers, rows of its journal, and clients' requests."""

from dataclasses import dataclass, field

from pentimento.dataplane.events import AttemptKey
from pentimento.policies.adapter_needs import NO_HOLDINGS, NO_NEEDS, AdapterHoldings, AdapterNeeds


@dataclass
class WorldWorker:
    worker_id: str
    model: str
    generation: int = 1
    credit_count: int = 1
    alive: bool = True
    # Whether its stream of credits is up as the frontdoor sees it.
    connected: bool = False
    # Whether this frontdoor knows all its attempts.
    heard: bool = False
    running: dict[AttemptKey, None] = field(default_factory=dict)
    # Attempts that gave their place away already.
    yielded: set[AttemptKey] = field(default_factory=set)
    reserve_count: int = 1
    preparing_count: int = 0
    holdings: AdapterHoldings = NO_HOLDINGS
    # Its generation that reported its holdings to this frontdoor.
    told: int = 0

    @property
    def most_attempts(self) -> int:
        """Return the most attempts that it holds at once, without the yielded ones."""
        return self.credit_count + self.reserve_count + self.preparing_count


@dataclass
class JournalRow:
    newest_token: int = 0
    attempt_number: int = 0
    worker_id: str = ""
    cascade_stage: int = 0
    model: str = ""
    picture_token: int = 0
    ends: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wish:
    """A client's request. `spare`: its light stage may run on a heavy worker; `count`: images of one call."""

    tenant: str
    deadline: float
    cascade: tuple[str, ...] = ()
    spare: bool = False
    pair: bool = False
    needs: AdapterNeeds = NO_NEEDS
    count: int = 1
    has_inputs: bool = False


def digest_of_model(name: str) -> str:
    return f"sha256:{name}"
