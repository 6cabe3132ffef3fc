"""Skip stages by a discriminator's forecast for the prompt."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.cascade import own_threshold
from pentimento.domain.foresight import PromptForesight, Verdict
from tests.unit.dataplane.cascades import CASCADE, cascade_driver, planned, route_heavy
from tests.unit.dataplane.driver import Driver, only


def arrive_foreseen(
    driver: Driver,
    foreseen: float | None,
    start: str = "noise",
    light_price: float = 0.0,
    verdict: Verdict = Verdict.UNSURE,
    threshold: float = 0.5,
    request_id: str = "r1",
) -> list[effects.Effect]:
    driver.arrive(request_id, 1000.0, pool="light", cascade=CASCADE)
    driver.send(events.AcceptPersisted(request_id))
    routed = events.RouteResolved(
        request_id,
        "light",
        "d",
        1.0,
        start=start,
        cascade=CASCADE,
        cascade_name="c",
        foreseen=None if foreseen is None else PromptForesight(foreseen, verdict, threshold),
        light_price=light_price,
    )
    return driver.send(routed)


def test_hard_prompt_skips_light_model() -> None:
    driver = cascade_driver(skip_light_below=0.05)

    assert arrive_foreseen(driver, 0.04) == [effects.ResolveRoute("r1", 1)]

    heavy = driver.start(route_heavy(driver))
    assert (heavy.worker_id, heavy.attempt_number) == ("hw", 1)
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", heavy.fencing_token)))
    assert commit.degraded == ""


def test_skipped_stage_counts_as_deferred_for_plans() -> None:
    driver = cascade_driver(skip_light_below=0.2)
    arrive_foreseen(driver, 0.12)

    pools = driver.dataplane.state.pools
    light, heavy = pools["light"], pools["heavy"]
    assert (light.arrived_count, light.scored_count, light.deferred_count) == (1, 1, 1)
    assert (light.confidences.index(1), sum(light.confidences)) == (2, 1)
    assert (light.waiting_count, heavy.arrived_count) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "foreseen", "start"),
    [
        ({}, 0.0, "noise"),  # off by default
        ({"skip_light_below": 0.05}, None, "noise"),
        ({"skip_light_below": 0.05}, 0.05, "noise"),
        ({"skip_light_below": 0.9}, 0.71, "noise"),  # the plan's threshold, 0.7, would accept it
        ({"skip_light_below": 0.05}, 0.0, "latent"),  # the forecast of the prompt does not apply to a hit
    ],
)
def test_other_prompt_starts_with_light_model(settings: dict[str, float], foreseen: float | None, start: str) -> None:
    driver = cascade_driver(**settings)
    driver.send(events.PlanReceived(planned(2, noise=0.7, latent=0.7)))

    assert driver.start(arrive_foreseen(driver, foreseen, start)).worker_id == "lw"


def test_the_last_stage_is_never_left_out() -> None:
    driver = cascade_driver(skip_light_below=0.05)
    arrive_foreseen(driver, 0.01)

    again = events.RouteResolved("r1", "heavy", "d", 1.0, cascade_stage=1, foreseen=PromptForesight(0.01))

    assert driver.start(driver.send(again)).worker_id == "hw"


def test_light_image_without_plan_is_skipped_by_operator_threshold() -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=0.5, skip_light_below=0.6))
    for name in CASCADE:
        driver.worker(name, model=name, model_digest=name)

    for request_id, foreseen, stage in (("r1", 0.5, 1), ("r2", 0.55, 0)):
        driver.arrive(request_id, 1000.0, pool="light", cascade=CASCADE)
        driver.send(events.AcceptPersisted(request_id))
        driver.send(events.RouteResolved(request_id, "light", "light", 1.0, foreseen=PromptForesight(foreseen)))
        assert driver.dataplane.state.requests[request_id].cascade_stage == stage


@pytest.mark.parametrize(
    ("own", "verdict", "start", "skipped", "scored"),
    [
        (None, Verdict.HARD, "noise", True, False),
        (None, Verdict.EASY, "noise", False, False),
        (None, Verdict.UNSURE, "noise", False, True),
        (0.6, Verdict.EASY, "noise", False, True),  # sure at 0.5, not at a higher threshold
        (0.4, Verdict.HARD, "noise", False, True),
        (None, Verdict.EASY, "latent", False, True),
    ],
)
def test_discriminators_verdict_skips_stage_or_score(
    own: float | None, verdict: Verdict, start: str, skipped: bool, scored: bool
) -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=own))
    for name in CASCADE:
        driver.worker(name, model=name, model_digest="d")

    routed = arrive_foreseen(driver, 0.5, start, verdict=verdict)

    assert (routed == [effects.ResolveRoute("r1", 1)]) is skipped
    if not skipped:
        light = driver.start(routed)
        ended = driver.send(events.AttemptFinished("r1", light.fencing_token))
        assert any(isinstance(effect, effects.Score) for effect in ended) is scored
        assert any(isinstance(effect, effects.CommitResult) for effect in ended) is not scored
        assert driver.dataplane.state.pools["light"].scored_count == int(not scored)


@pytest.mark.parametrize(("confidence", "deferred"), [(0.45, True), (0.55, False)])
def test_without_own_threshold_the_discriminators_decides(confidence: float, deferred: bool) -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=None))
    for name in CASCADE:
        driver.worker(name, model=name, model_digest="d")
    light = driver.start(arrive_foreseen(driver, 0.5))
    driver.send(events.AttemptFinished("r1", light.fencing_token))

    found = driver.send(events.Scored("r1", light.fencing_token, confidence))

    assert (effects.ResolveRoute("r1", 1) in found) is deferred


@pytest.mark.parametrize(
    ("light_price", "start", "skipped"), [(1.0, "noise", True), (0.9, "noise", False), (1.0, "latent", False)]
)
def test_light_stage_as_expensive_as_the_next_is_skipped(light_price: float, start: str, skipped: bool) -> None:
    driver = cascade_driver()

    routed = arrive_foreseen(driver, None, start, light_price)

    assert (routed == [effects.ResolveRoute("r1", 1)]) is skipped


def test_own_threshold_without_prediction_is_the_last_predictions() -> None:
    driver = Driver(DataplaneSettings(confidence_threshold=None))
    for name in CASCADE:
        driver.worker(name, model=name, model_digest=name)

    assert own_threshold(driver.dataplane.state, None) == 0.5
    arrive_foreseen(driver, 0.55, threshold=0.16, request_id="r1")
    arrive_foreseen(driver, None, request_id="r2")

    assert own_threshold(driver.dataplane.state, None) == 0.16
