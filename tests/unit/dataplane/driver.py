"""A dataplane and short words to drive it with."""

from dataclasses import replace
from typing import Any, TypeVar

from pentimento.dataplane import Dataplane, DataplaneSettings, effects, events
from pentimento.policies.thinning import WHOLE, ThinningOffer

E = TypeVar("E", bound=effects.Effect)


class Driver:
    """Sends events at a time that only moves when told, and remembers the effects."""

    def __init__(self, settings: DataplaneSettings | None = None, epoch: int = 1) -> None:
        self.dataplane = Dataplane(epoch, settings)
        self.now = 100.0

    def send(self, event: events.Event) -> list[effects.Effect]:
        return self.dataplane.on_event(self.now, event)

    def worker(
        self, worker_id: str = "w1", generation: int = 1, credit_count: int = 1, **changes: object
    ) -> list[effects.Effect]:
        values = {
            "model": "m",
            "model_digest": "d",
            "draining": False,
            "pinned": True,
            "running": frozenset(),
            **changes,
        }
        return self.send(
            events.WorkerReported(
                worker_id=worker_id,
                worker_generation=generation,
                credit_count=credit_count,
                **values,  # type: ignore[arg-type]
            )
        )

    def arrive(
        self,
        request_id: str = "r1",
        deadline: float = 1000.0,
        pool: str = "m",
        work: float = 1.0,
        tenant: str = "tenant",
        **changes: Any,
    ) -> list[effects.Effect]:
        return self.send(events.RequestArrived(request_id, tenant, pool, work, deadline, **changes))

    def queue(
        self,
        request_id: str = "r1",
        deadline: float = 1000.0,
        digest: str = "d",
        pool: str = "m",
        work: float = 1.0,
        spare: tuple[events.RouteOption, ...] = (),
        pair: bool = False,
        start: str = "noise",
        cascade_name: str = "",
        thinning: ThinningOffer = WHOLE,
        **arrival: Any,
    ) -> list[effects.Effect]:
        """Arrived, accepted and routed; through the plan's cascade where one is named."""
        self.arrive(request_id, deadline, work=work, thinning=thinning, **arrival)
        self.send(events.AcceptPersisted(request_id))
        routed = events.RouteResolved(request_id, pool, digest, work, spare=spare, pair=pair, start=start)
        cascade = arrival.get("cascade", ()) if cascade_name else ()
        routed = replace(routed, cascade=cascade, cascade_name=cascade_name)
        return self.send(replace(routed, thinning=thinning))

    def profile(self, pool: str = "m", *seconds_per_work: tuple[int, float]) -> None:
        self.send(events.ProfilesReceived((events.SpeedProfile(pool, seconds_per_work or ((1, 1.0),)),)))

    def start(self, effect_list: list[effects.Effect]) -> effects.Execute:
        """The journal has written the one attempt among the effects."""
        attempt = only(effects.PersistAttempt, effect_list)
        return only(effects.Execute, self.send(events.AttemptPersisted(attempt.request_id, attempt.fencing_token)))

    def run(self, request_id: str = "r1", deadline: float = 1000.0) -> effects.Execute:
        return self.start(self.queue(request_id, deadline))


def only(kind: type[E], effect_list: list[effects.Effect]) -> E:
    found = [effect for effect in effect_list if isinstance(effect, kind)]
    assert len(found) == 1, effect_list
    return found[0]


def kinds(effect_list: list[effects.Effect]) -> list[type]:
    return [type(effect) for effect in effect_list]
