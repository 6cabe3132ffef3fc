"""End simulated requests: write their records, and insert their results into the cache."""

from random import Random

from lab.emulation.cost_draws import draw
from lab.runs import Outcome, RequestRecord, StartKind
from lab.simulator.agenda import Agenda
from lab.simulator.controller import SimulatedController
from lab.simulator.fleet import SimulatedFleet
from lab.simulator.ledger import SimulatedImage, SimulatedRequest, record_of
from lab.simulator.reuse import Reuse
from lab.simulator.scenario import Scenario
from pentimento.dataplane import effects
from pentimento.domain.demand import MOST_KEPT

_OUTCOME_OF = {
    effects.End.FAILED: Outcome.FAILED,
    effects.End.CANCELLED: Outcome.CANCELLED,
    effects.End.EXPIRED: Outcome.DROPPED,
    effects.End.DROPPED: Outcome.DROPPED,
}


class Endings:
    """Performs the effects that end requests: each leaves `requests`, and its record is added to `records`."""

    def __init__(
        self,
        scenario: Scenario,
        agenda: Agenda,
        rng: Random,
        fleet: SimulatedFleet,
        controller: SimulatedController,
        reuse: Reuse,
        requests: dict[str, SimulatedRequest],
    ) -> None:
        self.records: list[RequestRecord] = []
        self._scenario = scenario
        self._agenda = agenda
        self._random = rng
        self._fleet = fleet
        self._controller = controller
        self._reuse = reuse
        self._requests = requests
        # The request that Deliver has just taken away; CommitCacheEntries comes right after it.
        self._delivered: tuple[SimulatedRequest, SimulatedImage]

    def reject(self, effect: effects.Reject) -> None:
        """Changes state: the request was never accepted."""
        self._end(effect.request_id, Outcome.REJECTED)

    def deliver(self, effect: effects.Deliver) -> None:
        """Record an answered request, in time or late, when the answer has arrived."""
        request = self._requests[effect.request_id]
        painted = request.painted[effect.picture_token]
        ended_s = self._agenda.now
        cost = self._scenario.delays.answer
        if cost.mean_s > 0.0:
            ended_s += draw(cost, self._random)
        late = ended_s > request.arrival.at_s + request.arrival.deadline_s
        if late:
            self._controller.count_late(painted.pool)
        self._compare(request, effect.picture_token)
        self._delivered = (request, painted)
        self._end(effect.request_id, Outcome.LATE if late else Outcome.COMPLETED, ended_s, painted)

    def _compare(self, request: SimulatedRequest, token: int) -> None:
        """Tell the controller what a deferred light image kept of the quality of the image that was delivered."""
        light, better = request.painted.get(request.scored_token), request.painted[token]
        if light is None or light is better or light.start.kind is not StartKind.NOISE or request.confidence is None:
            return
        kept, whole = (self._fleet.quality_of(request, one) for one in (light, better))
        if kept is not None and whole:
            self._controller.starts.count_compared(light.pool, request.confidence, min(kept / whole, MOST_KEPT))

    def deliver_end(self, effect: effects.DeliverEnd) -> None:
        """Record a request that ends without an image."""
        self._end(effect.request_id, _OUTCOME_OF[effect.end])

    def commit_cache(self, effect: effects.CommitCacheEntries) -> None:
        """Changes state: later requests may start from what the delivered one left."""
        request, painted = self._delivered
        if request.request_id == effect.request_id:
            self._reuse.remember(request, painted)

    def _end(
        self, request_id: str, outcome: Outcome, ended_s: float | None = None, painted: SimulatedImage | None = None
    ) -> None:
        request = self._requests.pop(request_id)
        quality = self._fleet.quality_of(request, painted) if painted is not None else None
        at_s = self._agenda.now if ended_s is None else ended_s
        self.records.append(record_of(request, outcome, at_s, painted, quality))
