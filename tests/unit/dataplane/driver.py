"""A dataplane with short words to drive it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pentimento.dataplane import Dataplane, DataplaneSettings, effects, events
from pentimento.domain.fleet import Capability, Plan, PoolPlan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.adapter_needs import AdapterHoldings, AdapterNeeds
from pentimento.policies.plan.entry import EVERY_START
from pentimento.policies.thinning import WHOLE, ThinningOffer, ThinningOption

E = TypeVar("E", bound=effects.Effect)
TAKES_LORAS = frozenset({Capability.LORA})
# Ten seconds of ten steps; 8 or 5 steps are enough.
OFFER = ThinningOffer(10, 0, (ThinningOption(4, 4, 0.99), ThinningOption(2, 3, 0.96)))


class Driver:
    """Send events at a time that only the test moves, and record the effects."""

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
        arrived = self.arrive(request_id, deadline, pool, work, thinning=thinning, cascade_name=cascade_name, **arrival)
        if effects.Reject in kinds(arrived):
            return arrived
        self.send(events.AcceptPersisted(request_id))
        routed = events.RouteResolved(request_id, pool, digest, work, spare=spare, pair=pair, start=start)
        cascade = arrival.get("cascade", ()) if cascade_name else ()
        routed = replace(routed, cascade=cascade, cascade_name=cascade_name)
        return self.send(replace(routed, thinning=thinning))

    def profile(self, pool: str = "m", *seconds_per_work: tuple[int, float]) -> None:
        self.send(events.ProfilesReceived((events.SpeedProfile(pool, seconds_per_work or ((1, 1.0),)),)))

    def start(self, effect_list: list[effects.Effect]) -> effects.Execute:
        """Persist the one attempt among the effects, and return its execution."""
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


def play(driver: Driver, script: str) -> str:
    """Send the events of a script's steps; return the last step's effects.

    Steps are separated by `, `: a verb, a name and options. Requests are accepted and routed, and with `run` also
    journalled. `fail r1 GONE` names a FailureKind, `wait 10` lets that time pass. An effect is its name and request;
    `r1 to w1` is a new attempt, `r1 at 1` a route for that stage."""
    effect_list: list[effects.Effect] = []
    for step in script.split(", "):
        verb, name, *options = step.split(" ")
        effect_list = VERBS[verb](driver, name, *options)
    return ", ".join(said_of(effect) for effect in effect_list)


def said_of(effect: effects.Effect) -> str:
    request_id = getattr(effect, "request_id", "")
    if isinstance(effect, effects.PersistAttempt):
        return f"{request_id} to {effect.worker_id}"
    if isinstance(effect, effects.ResolveRoute):
        return f"{request_id} at {effect.cascade_stage}{' anew' if effect.anew else ''}"
    if isinstance(effect, effects.Reject) and effect.quota:
        return f"Reject {request_id} {effect.quota} {effect.retry_after_ms}"
    if isinstance(effect, effects.ThinAttempt):
        return f"{request_id} thins {'+'.join(map(str, effect.thinned_steps))}"
    note = effect.reason if isinstance(effect, effects.Reject) else getattr(effect, "degraded", "")
    return f"{type(effect).__name__} {request_id} {note}".strip()


def report(driver: Driver, name: str, *options: str) -> list[effects.Effect]:
    """Report a worker; `has` and `warm` are LoRAs, other options are fields of the report, flags without a value."""
    values: dict[str, Any] = {}
    for option in options:
        field, _, value = option.partition("=")
        values[field] = int(value) if value.isdecimal() else value or True
    loras = {field: frozenset(filter(None, str(values.pop(field, "")).split("+"))) for field in ("has", "warm")}
    if any(loras.values()):
        values["holdings"] = AdapterHoldings(TAKES_LORAS, loras["has"] | loras["warm"], loras["warm"])
    return driver.worker(name, **values)


def queue(driver: Driver, name: str, *options: str) -> list[effects.Effect]:
    """`with=image`: it has inputs; `within`: seconds to the deadline; `needs`: a LoRA; `spare`: a further pool."""
    values: dict[str, Any] = dict(option.split("=") for option in options)
    if values.pop("with", ""):
        values["has_inputs"] = True
    if values.pop("thins", ""):
        values["thinning"] = OFFER
    values["work"] = float(values.get("work", 1.0))
    if "cascade" in values:
        values["cascade"] = tuple(values["cascade"].split("+"))
    if "within" in values:
        values["deadline"] = driver.now + float(values.pop("within"))
    if "needs" in values:
        values["needs"] = AdapterNeeds(TAKES_LORAS, frozenset({values["needs"]}))
    if "spare" in values:
        values["spare"] = (events.RouteOption(values["spare"], "d", 3.0),)
    return driver.queue(name, **values)


def of_attempt(kind: Any) -> Callable[..., list[effects.Effect]]:
    """Send an event of the newest attempt of a request."""

    def send(driver: Driver, name: str, *values: str) -> list[effects.Effect]:
        token = driver.dataplane.state.requests[name].fencing_token
        return driver.send(kind(name, token, *(events.FailureKind[value] for value in values)))

    return send


def arrive(driver: Driver, name: str, *options: str) -> list[effects.Effect]:
    """`others` arrive together with it; other options are arguments."""
    values: dict[str, Any] = dict(option.split("=") for option in options)
    values["others"] = tuple(filter(None, values.pop("others", "").split("+")))
    told = driver.arrive(name, **{**values, "work": float(values.get("work", 1.0))})
    return [effect for effect in told if not isinstance(effect, effects.PrepareRoute)]


def plan(driver: Driver, sequence: str, *pools: str) -> list[effects.Effect]:
    """Send a plan of pools with their workers; `entry` is the pool of requests without a model."""
    staffed = dict(pool.split("=") for pool in pools)
    entry = staffed.pop("entry", "")
    plans = tuple(
        PoolPlan(name, name, tuple(filter(None, workers.split("+"))), EVERY_START if name == entry else ())
        for name, workers in staffed.items()
    )
    return driver.send(events.PlanReceived(Plan(PlanVersion(1, int(sequence)), pools=plans)))


def route(driver: Driver, name: str, pool: str, stage: str, *options: str) -> list[effects.Effect]:
    cascade = dict(option.split("=") for option in options).get("cascade", "")
    stages = tuple(filter(None, cascade.split("+")))
    return driver.send(events.RouteResolved(name, pool, "d", 1.0, cascade_stage=int(stage), cascade=stages))


def score(driver: Driver, name: str, confidence: str) -> list[effects.Effect]:
    token = driver.dataplane.state.requests[name].picture_token
    return driver.send(events.Scored(name, token, float(confidence)))


def progress(driver: Driver, name: str, step: str) -> list[effects.Effect]:
    token = driver.dataplane.state.requests[name].fencing_token
    return driver.send(events.AttemptProgressed(name, token, int(step)))


def wait(driver: Driver, seconds: str) -> list[effects.Effect]:
    driver.now += float(seconds)
    return driver.send(events.TimePassed())


VERBS: dict[str, Callable[..., list[effects.Effect]]] = {
    "worker": report,
    "lose": lambda driver, name, generation="1": driver.send(events.WorkerLost(name, int(generation))),
    "arrive": arrive,
    "drop": lambda driver, name: driver.send(events.AcceptDropped(name)),
    "queue": queue,
    "journal": of_attempt(events.AttemptPersisted),
    "run": lambda driver, name, *options: [driver.start(queue(driver, name, *options))],
    "begin": of_attempt(events.AttemptStarted),
    "yield": of_attempt(events.AttemptYielded),
    "finish": of_attempt(events.AttemptFinished),
    "fail": of_attempt(events.AttemptFailed),
    "plan": plan,
    "progress": progress,
    "route": route,
    "score": score,
    "commit": lambda driver, name: driver.send(
        events.ResultCommitted(name, driver.dataplane.state.requests[name].fencing_token, True)
    ),
    "cancel": lambda driver, name: driver.send(events.CancelRequested(name)),
    "wait": wait,
}
