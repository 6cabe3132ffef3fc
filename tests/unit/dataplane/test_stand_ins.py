"""A light stage stands in for the heavy one, if that would be late."""

import pytest

from pentimento.dataplane import DataplaneSettings, events
from pentimento.domain.fleet import CascadePlan, Plan, PoolPlan, RouteShare, StagePlan, StartThreshold
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, play

HEAVY_S, LIGHT_S = 10.0, 1.0


def standing_in(*thresholds: StartThreshold, **settings: object) -> Driver:
    """Return a driver with one worker of each model; a heavy image takes ten seconds, a light one a second."""
    driver = Driver(DataplaneSettings(prediction_margin=0.0, **settings))  # type: ignore[arg-type]
    play(driver, "worker hw model=heavy, worker lw model=light")
    driver.profile("heavy", (1, HEAVY_S))
    driver.profile("light", (1, LIGHT_S))
    pools = (
        PoolPlan("heavy", "heavy", ("hw",), (RouteShare("noise", 1.0, "c"),)),
        PoolPlan("light", "light", ("lw",)),
    )
    cascade = CascadePlan("c", (StagePlan("heavy", thresholds), StagePlan("light")))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), pools=pools, cascades=(cascade,))))
    return driver


def ask(request_id: str, within_s: float, verb: str = "queue") -> str:
    return f"{verb} {request_id} pool=heavy cascade=heavy+light cascade_name=c within={within_s}"


# The heavy worker is busy for ten seconds, and a request waits for it.
BUSY = f"{ask('first', 100, 'run')}, {ask('second', 100)}"
LATE = f"{BUSY}, {ask('late', 12)}"
LIGHT_BUSY = ", ".join(f"queue light-{number} pool=light" for number in range(4))
REFUSED = "Reject late PREDICTED_LATE"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (LATE, "late at 1"),
        (f"{LATE}, route late light 1", "late to lw"),
        (f"{LATE}, route late light 1, journal late, finish late", "CommitResult late PREDICTED_LATE"),
        (f"{BUSY}, {ask('patient', 31)}", ""),
        (f"{ask('r1', 100, 'run')}, finish r1", "CommitResult r1"),
        # Without a light worker, or with too many requests before it, it is rejected or dropped.
        (f"worker lw model=light credit_count=0, {LATE}", REFUSED),
        (f"{BUSY}, {LIGHT_BUSY}, {ask('late', 2.5)}", REFUSED),
        (f"{BUSY}, {LIGHT_BUSY}, {ask('later', 9)}", "later at 1"),
        (f"{BUSY}, {ask('late', 4)}, {LIGHT_BUSY}, queue light-4 pool=light, route late light 1", "PersistEnd late"),
        # Its turn comes too late, also under a later plan.
        (
            f"{ask('first', 100, 'run')}, {ask('waiting', 25)}, wait 16, finish first",
            "CommitResult first, waiting at 1",
        ),
        (
            f"{ask('first', 100, 'run')}, {ask('waiting', 25)}, plan 2 heavy=hw light=lw entry=light, wait 16,"
            " finish first",
            "CommitResult first, waiting at 1",
        ),
        # Its deadline passes while it is sent on.
        (f"{LATE}, wait 12", "PersistEnd late"),
    ],
)
def test_light_stage_stands_in_for_late_requests(script: str, said: str) -> None:
    assert play(standing_in(), script) == said


def test_scored_stage_and_late_requests_have_no_stand_in() -> None:
    assert play(standing_in(StartThreshold("noise", 0.5)), LATE) == REFUSED
    assert play(standing_in(drop_late=False), LATE) == ""


def test_stand_in_is_counted_without_work_of_the_former_pool() -> None:
    driver = standing_in()

    play(driver, LATE)

    light, heavy = driver.dataplane.state.pools["light"], driver.dataplane.state.pools["heavy"]
    assert (light.waiting_count, light.waiting_work, light.arrived_count) == (1, 0.0, 1)
    assert (heavy.waiting_count, heavy.stood_in_count, heavy.scored_count, heavy.deferred_count) == (1, 1, 0, 0)
