"""Requests with LoRAs and ControlNets go to workers that have them, and hold up nobody else."""

from dataclasses import replace

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.events import FailureKind
from pentimento.domain.fleet import Capability
from pentimento.policies.adapter_needs import AdapterHoldings, AdapterNeeds
from tests.unit.dataplane.driver import Driver, kinds, only

TAKES_LORAS = frozenset({Capability.LORA})
NEON = AdapterNeeds(TAKES_LORAS, frozenset({"neon"}))
MOSAIC = AdapterNeeds(TAKES_LORAS, frozenset({"mosaic"}))
CONTROLLED = AdapterNeeds(frozenset({Capability.CONTROLNET}))


def holding(*loras: str, resident: tuple[str, ...] = ()) -> AdapterHoldings:
    return AdapterHoldings(TAKES_LORAS, frozenset(loras), frozenset(resident))


def started(found: list[effects.Effect]) -> list[tuple[str, str]]:
    return [(effect.request_id, effect.worker_id) for effect in found if isinstance(effect, effects.PersistAttempt)]


@pytest.mark.parametrize(
    ("needs", "holdings"),
    [
        (NEON, None),
        (NEON, holding("mosaic")),
        (NEON, AdapterHoldings(loras=frozenset({"neon"}))),
        (CONTROLLED, holding("neon")),
    ],
    ids=["a worker that told of nothing", "another LoRA", "no capability", "no ControlNets"],
)
def test_a_worker_without_what_a_request_needs_is_not_given_it(
    driver: Driver, needs: AdapterNeeds, holdings: AdapterHoldings | None
) -> None:
    driver.worker(holdings=holdings)

    assert driver.queue(needs=needs) == []
    able = AdapterHoldings(TAKES_LORAS | {Capability.CONTROLNET}, frozenset({"neon"}))
    assert started(driver.worker("able", holdings=able)) == [("r1", "able")]


def test_a_request_that_waits_for_its_lora_holds_up_nobody(driver: Driver) -> None:
    driver.queue("styled", needs=NEON)
    driver.queue("plain")

    assert started(driver.worker("plain-worker")) == [("plain", "plain-worker")]


def test_it_goes_first_once_a_worker_that_suits_it_is_free(driver: Driver) -> None:
    driver.worker("plain-worker")
    driver.queue("styled", needs=NEON)
    driver.start(driver.queue("running"))
    driver.queue("later", deadline=200.0)

    assert started(driver.worker("able", holdings=holding("neon"))) == [("styled", "able")]


def test_those_that_wait_for_loras_keep_their_order_and_pass_one_another(driver: Driver) -> None:
    driver.worker("none", credit_count=9)
    for name, needs in (("n1", NEON), ("m1", MOSAIC), ("n2", NEON)):
        driver.queue(name, needs=needs)

    assert started(driver.worker("neon", holdings=holding("neon"), credit_count=2)) == [("n1", "neon"), ("n2", "neon")]
    assert started(driver.worker("mosaic", holdings=holding("mosaic"))) == [("m1", "mosaic")]


def test_where_a_lora_is_resident_is_preferred_among_workers_that_idle(driver: Driver) -> None:
    driver.worker("cold", holdings=holding("neon", "mosaic", resident=("mosaic",)), credit_count=2)
    driver.worker("warm", holdings=holding("neon", "mosaic", resident=("neon",)), credit_count=2)

    assert started(driver.queue("a", needs=NEON)) == [("a", "warm")]
    assert started(driver.queue("b", needs=MOSAIC)) == [("b", "cold")]


def test_who_has_fetched_an_uploaded_lora_is_preferred_and_anybody_who_fetches_will_do(driver: Driver) -> None:
    fetches = frozenset({Capability.UPLOADED_LORA})
    needs = AdapterNeeds(fetches, uploaded=frozenset({"ink"}))
    driver.worker("cold", holdings=AdapterHoldings(fetches))
    driver.worker("warm", holdings=AdapterHoldings(fetches, resident=frozenset({"ink"})))

    assert started(driver.queue("a", needs=needs)) == [("a", "warm")]
    assert started(driver.queue("b", needs=needs)) == [("b", "cold")]


@pytest.mark.parametrize(("load_s", "chosen"), [(5.0, "warm"), (0.5, "cold")])
def test_a_load_is_weighed_against_the_seconds_of_a_fuller_batch(load_s: float, chosen: str) -> None:
    """Alone a picture takes 10 s, beside another one 14 s each."""
    driver = Driver(DataplaneSettings(adapter_load_s=load_s))
    driver.profile("m", (1, 1.0), (2, 1.4))
    driver.worker("warm", holdings=holding("neon", resident=("neon",)), credit_count=2)
    assert started(driver.queue("first", work=10.0, needs=NEON)) == [("first", "warm")]
    driver.worker("cold", holdings=holding("neon"), credit_count=2)

    assert started(driver.queue("second", work=10.0, needs=NEON)) == [("second", chosen)]


@pytest.mark.parametrize(
    ("measured_s", "chosen"),
    [({"neon": 1.0}, "cold"), ({"neon": 5.0}, "warm"), ({}, "warm")],
    ids=["1 s", "5 s", "not"],
)
def test_measured_load_seconds_of_a_worker_decide(measured_s: dict[str, float], chosen: str) -> None:
    """Alone an image takes 10 s, beside another one 14 s each; a load that was not measured counts 9 s."""
    driver = Driver(DataplaneSettings(adapter_load_s=9.0))
    driver.profile("m", (1, 1.0), (2, 1.4))
    driver.worker("warm", holdings=holding("neon", resident=("neon",)), credit_count=2)
    assert started(driver.queue("first", work=10.0, needs=NEON)) == [("first", "warm")]
    driver.worker("cold", holdings=replace(holding("neon"), load_s=measured_s), credit_count=2)

    assert started(driver.queue("second", work=10.0, needs=NEON)) == [("second", chosen)]


def test_what_a_worker_told_holds_until_it_tells_otherwise_or_starts_anew(driver: Driver) -> None:
    driver.worker(holdings=holding("neon"), credit_count=0)
    driver.queue(needs=NEON)

    assert started(driver.worker(holdings=None)) == [("r1", "w1")]
    driver.worker(generation=2)
    assert driver.queue("r2", needs=NEON) == []
    assert started(driver.worker(generation=2, holdings=holding("neon"))) == [("r1", "w1")]


def test_an_urgent_request_takes_nobodys_place_on_a_worker_that_lacks_its_lora(driver: Driver) -> None:
    driver.worker("plain-worker", reserve_count=1)
    driver.run("relaxed", deadline=1000.0)

    assert started(driver.queue("urgent", deadline=110.0, needs=NEON)) == []
    assert started(driver.queue("plain", deadline=110.0)) == []  # behind it: the tenant's earliest due goes first
    driver.send(events.CancelRequested("urgent"))
    assert started(driver.worker("plain-worker", reserve_count=1)) == [("plain", "plain-worker")]


def test_a_rerun_goes_where_its_lora_is(driver: Driver) -> None:
    driver.worker("able", holdings=holding("neon"))
    run = driver.start(driver.queue(needs=NEON))
    driver.worker("other")

    lost = driver.send(events.AttemptFailed("r1", run.fencing_token, FailureKind.WORKER_LOST))

    assert kinds(lost) == [effects.ReleaseGrant]
    assert started(driver.worker("third", holdings=holding("neon"))) == [("r1", "third")]


def test_a_spare_lane_without_the_lora_leaves_the_request_to_its_own(driver: Driver) -> None:
    spare = (events.RouteOption("large", "dl", 3.0),)
    driver.worker("large", model="large", model_digest="dl", holdings=holding("mosaic"))

    assert driver.queue(needs=NEON, spare=spare) == []
    assert started(driver.worker("own", holdings=holding("neon"))) == [("r1", "own")]


def test_a_spare_lane_takes_it_once_it_has_the_lora_and_nothing_of_its_own(driver: Driver) -> None:
    spare = (events.RouteOption("large", "dl", 3.0),)
    driver.worker("large", model="large", model_digest="dl", holdings=holding())
    driver.queue("styled", needs=NEON, spare=spare)
    driver.start(driver.queue("own", pool="large", digest="dl"))
    driver.queue("next", pool="large", digest="dl")

    able = driver.worker("large2", model="large", model_digest="dl", holdings=holding("neon"), credit_count=2)

    assert [name for name, _ in started(able)] == ["next", "styled"]


def test_a_recovered_request_still_needs_its_lora(driver: Driver) -> None:
    recovered = events.RecoveredRequest("r1", "t", "m", 1.0, 1000.0, routed=True, model_digest="d", needs=NEON)
    driver.worker("other")

    assert driver.send(events.Recovered((recovered,))) == []
    assert started(driver.worker("able", holdings=holding("neon"))) == [("r1", "able")]


def test_one_that_is_set_aside_ends_at_its_deadline(driver: Driver) -> None:
    driver.worker("other")
    driver.queue(needs=NEON, deadline=110.0)

    driver.now = 111.0
    ended = only(effects.PersistEnd, driver.send(events.TimePassed()))

    assert ended.end is effects.End.EXPIRED
    assert started(driver.worker("able", holdings=holding("neon"))) == []


def test_a_plain_request_leaves_the_last_worker_with_a_lora_to_those_that_need_it(driver: Driver) -> None:
    both = holding("neon", "mosaic")
    driver.worker("neon", holdings=holding("neon", "mosaic", resident=("neon",)))
    driver.worker("cold", holdings=both)

    assert started(driver.queue("plain")) == [("plain", "cold")]
    assert started(driver.queue("styled", needs=NEON)) == [("styled", "neon")]


def test_a_plain_request_does_not_wait_for_a_dearer_worker(driver: Driver) -> None:
    driver.worker("neon", holdings=holding("neon", resident=("neon",)), credit_count=2)
    driver.worker("busy", holdings=holding("neon"), credit_count=2)
    driver.start(driver.queue("first"))

    assert started(driver.queue("second")) == [("second", "neon")]


def test_of_workers_that_cost_the_same_eight_are_compared_for_a_plain_request(driver: Driver) -> None:
    """The ninth would be missed by nobody."""
    for number in range(8):
        driver.worker(f"w{number}", holdings=holding(f"lora {number}"))
    driver.worker("w8", holdings=holding())

    assert only(effects.PersistAttempt, driver.queue()).worker_id == "w0"
