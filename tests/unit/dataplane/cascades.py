"""A dataplane with a light and a heavy worker, and requests that go through both."""

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, RouteShare, StagePlan, StartThreshold
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only

CASCADE = ("light", "heavy")


def cascade_driver(**settings: object) -> Driver:
    driver = Driver(DataplaneSettings(**settings))  # type: ignore[arg-type]
    driver.worker("lw", model="light", model_digest="d")
    driver.worker("hw", model="heavy", model_digest="d")
    driver.send(events.PlanReceived(planned(noise=0.7)))
    return driver


def planned(sequence: int = 1, **thresholds: float) -> Plan:
    """Return a plan with the light model first, and thresholds for each kind of start."""
    routes = tuple(RouteShare(start, 1.0, "c") for start in thresholds)
    pools = (PoolPlan("light", "light", ("lw",), routes), PoolPlan("heavy", "heavy", ("hw",)))
    light = StagePlan("light", tuple(StartThreshold(start, value) for start, value in thresholds.items()))
    cascades = (CascadePlan("c", (light, StagePlan("heavy"))),)
    return Plan(PlanVersion(1, sequence), pools=pools, cascades=cascades)


def generate_light(driver: Driver, request_id: str = "r1", deadline: float = 1000.0, *, planned: bool = False) -> int:
    """Generate the light image and return the token of its attempt."""
    way = {"pool": "light", "cascade": CASCADE, "cascade_name": "c", "planned": planned}
    queued = driver.queue(request_id, deadline, digest="d", **way)  # type: ignore[arg-type]
    token = driver.start(queued).fencing_token
    scored = only(effects.Score, driver.send(events.AttemptFinished(request_id, token)))
    assert (scored.fencing_token, scored.cascade_stage) == (token, 0)
    return token


def defer(driver: Driver, request_id: str = "r1", deadline: float = 1000.0) -> int:
    token = generate_light(driver, request_id, deadline)
    deferred = driver.send(events.Scored(request_id, token, 0.3))
    assert kinds(deferred) == [effects.ReleaseGrant, effects.ResolveRoute]
    assert only(effects.ResolveRoute, deferred).cascade_stage == 1
    return token


def route_heavy(driver: Driver, request_id: str = "r1") -> list[effects.Effect]:
    return driver.send(events.RouteResolved(request_id, "heavy", "d", 1.0, cascade_stage=1))
