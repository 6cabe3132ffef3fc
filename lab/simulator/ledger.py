"""Keep the state of every simulated request, and its record."""

import math
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist

from lab.emulation.recording import quantile_of
from lab.runs import Outcome, RequestRecord, StageSpan, StartKind
from lab.simulator.cache import MISS, CacheAnswer
from lab.simulator.scenario import Scenario
from lab.workloads import Arrival
from pentimento.policies.plan.entry import Stage

_NORMAL = NormalDist()


@dataclass(slots=True, eq=False)
class SimulatedImage:
    """The image of one attempt."""

    pool: str
    model: str
    start: CacheAnswer
    steps: int
    # Share of the full run's quality that its thinning keeps on average, as measured.
    thinned_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Chance:
    """Draws of one request from the standard normal distribution: the confidence's own part, and by how many standard
    deviations a light image and a hit differ from their means."""

    confidence: float
    light: float
    hit: float

    @classmethod
    def of(cls, draw: float, route_draw: float) -> "Chance":
        """Derive the draws from the request's others, so that systems are compared on the same images."""
        rng = Random(f"{draw} {route_draw}")
        return cls(*(rng.gauss(0.0, 1.0) for _ in range(3)))

    def quantile(self, draw: float, correlation: float) -> float:
        """Return the quantile (0..1) of the confidence of a light image with a quality at quantile `draw`."""
        if correlation >= 1.0:
            return draw
        score = _NORMAL.inv_cdf(min(max(draw, 1e-12), 1.0 - 1e-12))
        return _NORMAL.cdf(correlation * score + math.sqrt(1.0 - correlation**2) * self.confidence)


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request. `draw` and `route_draw` are uniform in 0..1 and the same under every policy. `draw` is its ease: the
    quantile of its light image's quality."""

    request_id: str
    arrival: Arrival
    draw: float
    route_draw: float
    cascade: tuple[Stage, ...] = ()
    # Starts by cascade stage; models by lane option.
    start: CacheAnswer = MISS
    options: tuple[tuple[str, str], ...] = ()
    pool: str = ""
    model: str = ""
    steps: int = 0
    deferred: bool = False
    confidence: float | None = None
    # The light image that the discriminator scored.
    scored_token: int = 0
    device_s: float = 0.0
    queued_s: float = 0.0
    painted: dict[int, SimulatedImage] = field(default_factory=dict)
    stages: list[StageSpan] = field(default_factory=list)
    chance: Chance = field(init=False)

    def __post_init__(self) -> None:
        self.chance = Chance.of(self.draw, self.route_draw)

    def score(self, token: int, scenario: Scenario) -> None:
        """Changes state: the discriminator scores the image of that attempt."""
        self.scored_token = token
        quantile = self.chance.quantile(self.draw, scenario.confidence_correlation)
        asked = (self.arrival.prompt, self.arrival.seed)
        self.confidence = scenario.confidences.get(asked, scenario.deferral.confidence(quantile))


def draws_of(arrival: Arrival, rng: Random) -> tuple[float, float]:
    """How easy it is, and its draw for the shares of plans. Drawn beforehand and by themselves, so that compared
    policies see the same requests; a prompt and its seed are as easy here as on an emulated device."""
    draws = (rng.random(), rng.random())
    return (quantile_of(arrival.prompt, arrival.seed), draws[1]) if arrival.prompt else draws


def record_of(
    request: SimulatedRequest, outcome: Outcome, ended_s: float, painted: SimulatedImage | None, quality: float | None
) -> RequestRecord:
    arrival = request.arrival
    start = painted.start if painted is not None else request.start
    return RequestRecord(
        request_id=request.request_id,
        tenant=arrival.tenant,
        slo_class=arrival.slo_class,
        pool=painted.pool if painted is not None else request.pool,
        arrived_s=arrival.at_s,
        deadline_s=arrival.deadline_s,
        ended_s=ended_s,
        outcome=outcome,
        start=start.kind if painted is not None else StartKind.NOISE,
        start_step=start.start_step_of(painted.steps) if painted is not None else 0,
        steps=painted.steps if painted is not None else request.steps,
        model=painted.model if painted is not None else request.model,
        deferred=request.deferred,
        confidence=request.confidence,
        quality=quality,
        stages=tuple(request.stages),
        device_s=request.device_s,
    )
