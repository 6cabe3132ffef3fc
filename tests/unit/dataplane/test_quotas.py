"""What tenants may ask for: refused over a quota, counted once admitted, and again after a restart."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.reasons import Reason
from pentimento.domain.tenants import TenantQuota
from tests.unit.dataplane.driver import Driver, kinds, only


def limited(driver: Driver, tenant: str = "tenant", **quota: object) -> None:
    driver.send(events.QuotasReceived(((tenant, TenantQuota(**quota)),)))  # type: ignore[arg-type]


def is_admitted(told: list[effects.Effect]) -> bool:
    return kinds(told)[0] is effects.PersistAccepted


def test_who_is_over_its_rate_is_told_when_to_come_back_and_then_let_in(driver: Driver) -> None:
    limited(driver, requests_per_s=2.0, burst_count=1)
    assert is_admitted(driver.arrive("r1"))

    reject = only(effects.Reject, driver.arrive("r2"))

    assert (reject.reason, reject.quota, reject.retry_after_ms) == (Reason.TENANT_QUOTA, "requests_per_s", 500)
    assert reject.message == "requests_per_s: at most 2 requests a second, 1 at once of this tenant"
    driver.now += 0.375
    assert only(effects.Reject, driver.arrive("r3")).retry_after_ms == 125
    driver.now += 0.125
    assert is_admitted(driver.arrive("r4"))


def test_other_tenants_are_served_meanwhile(driver: Driver) -> None:
    limited(driver, "greedy", requests_per_s=0.01)
    driver.arrive("r1", tenant="greedy")

    assert only(effects.Reject, driver.arrive("r2", tenant="greedy"))
    assert all(is_admitted(driver.arrive(f"m{number}", tenant="modest")) for number in range(5))


def test_a_refused_request_uses_nothing_up(driver: Driver) -> None:
    """Refused by one quota, or by a full queue, it is missing from none."""
    limited(driver, requests_per_s=1.0, burst_count=2, cost_per_minute=60.0)
    assert only(effects.Reject, driver.arrive("too dear", work=61.0)).retry_after_ms == 0
    driver.dataplane.state.draining = True
    driver.arrive("too late", work=60.0)
    driver.dataplane.state.draining = False

    assert is_admitted(driver.arrive("r1", others=("r2",), work=30.0))
    assert driver.dataplane.state.requests.keys() == {"r1", "r2"}


def test_what_a_full_queue_refuses_is_not_counted() -> None:
    driver = Driver(DataplaneSettings(queue_limit=1))
    limited(driver, requests_per_s=0.001, burst_count=2)
    driver.arrive("r1")
    assert only(effects.Reject, driver.arrive("r2")).reason == "QUEUE_FULL"
    driver.send(events.CancelRequested("r1"))
    driver.send(events.AcceptPersisted("r1"))
    driver.send(events.EndPersisted("r1", True))

    assert is_admitted(driver.arrive("r3"))


def test_several_pictures_count_as_many_and_come_in_together_or_not_at_all(driver: Driver) -> None:
    limited(driver, requests_per_s=1.0, burst_count=3)

    rejects = driver.arrive("r1", others=("r2", "r3", "r4"))

    assert {effect.quota for effect in rejects if isinstance(effect, effects.Reject)} == {"requests_per_s"}
    assert [effect.request_id for effect in rejects if isinstance(effect, effects.Reject)] == ["r1", "r2", "r3", "r4"]
    assert {effect.retry_after_ms for effect in rejects if isinstance(effect, effects.Reject)} == {0}
    assert is_admitted(driver.arrive("s1", others=("s2", "s3")))
    assert only(effects.Reject, driver.arrive("t1")).retry_after_ms == 1000


def test_cost_is_counted_for_each_picture_and_comes_back_by_the_minute(driver: Driver) -> None:
    limited(driver, cost_per_minute=600.0)
    assert is_admitted(driver.arrive("r1", others=("r2",), work=250.0))

    reject = only(effects.Reject, driver.arrive("r3", work=250.0))

    assert (reject.quota, reject.retry_after_ms) == ("cost_per_minute", 15_000)
    driver.now += 15.0
    assert is_admitted(driver.arrive("r4", work=250.0))


def test_an_accepted_request_counts_until_it_has_ended(driver: Driver) -> None:
    limited(driver, concurrent_count=1)
    driver.worker()
    run = driver.run("r1")
    reject = only(effects.Reject, driver.arrive("r2"))
    assert (reject.quota, reject.retry_after_ms > 0) == ("concurrent_count", True)

    driver.send(events.AttemptFinished("r1", run.fencing_token))
    assert only(effects.Reject, driver.arrive("r3")).quota == "concurrent_count"
    driver.send(events.ResultCommitted("r1", run.fencing_token, True))

    assert is_admitted(driver.arrive("r4"))


def test_what_an_earlier_frontdoor_accepted_counts_after_a_restart(driver: Driver) -> None:
    recovered = tuple(events.RecoveredRequest(f"old-{number}", "tenant", "m", 1.0, 1000.0) for number in range(2))
    limited(driver, concurrent_count=3)

    driver.send(events.Recovered(recovered))

    assert is_admitted(driver.arrive("r1"))
    assert only(effects.Reject, driver.arrive("r2")).message == (
        "concurrent_count: at most 3 requests at once, 3 have not ended of this tenant"
    )


def test_what_the_journal_did_not_take_is_given_back(driver: Driver) -> None:
    limited(driver, requests_per_s=0.001, cost_per_minute=10.0, concurrent_count=1)
    driver.arrive("r1", work=10.0)

    driver.send(events.AcceptDropped("r1"))

    assert is_admitted(driver.arrive("r2", work=10.0))
    assert only(effects.Reject, driver.arrive("r3"))


def test_pools_that_a_tenant_may_not_use_are_refused(driver: Driver) -> None:
    limited(driver, pools=("light",))

    reject = only(effects.Reject, driver.arrive("r1", pool="heavy"))

    assert (reject.reason, reject.quota, reject.retry_after_ms) == (Reason.POOL_NOT_ALLOWED, "pools", 0)
    assert is_admitted(driver.arrive("r2", pool="light"))


def test_new_quotas_replace_the_old_ones_and_what_was_used_stays_used(driver: Driver) -> None:
    limited(driver, requests_per_s=0.001, burst_count=2)
    driver.arrive("r1")
    limited(driver, requests_per_s=0.001, burst_count=3)
    assert is_admitted(driver.arrive("r2", others=("r3",)))
    assert only(effects.Reject, driver.arrive("r4"))

    driver.send(events.QuotasReceived(()))

    assert is_admitted(driver.arrive("r5"))
    assert not driver.dataplane.state.meters


def test_a_weight_is_a_share_of_the_queue() -> None:
    """Of 12 places three quarters are for the tenant of weight 3, once both wait."""
    driver = Driver(DataplaneSettings(queue_limit=12))
    limited(driver, "heavy", weight=3.0)
    driver.arrive("l0", tenant="light")

    heavy = [is_admitted(driver.arrive(f"h{number}", tenant="heavy")) for number in range(12)]
    light = [is_admitted(driver.arrive(f"l{number}", tenant="light")) for number in range(1, 12)]

    assert (heavy.count(True), 1 + light.count(True)) == (9, 3)


@pytest.mark.parametrize(("weight", "share"), [(3.0, 0.75), (1.0, 0.5), (0.25, 0.2)])
def test_a_weight_is_a_share_of_the_workers(weight: float, share: float) -> None:
    driver = Driver(DataplaneSettings(queue_limit=10_000))
    for number in range(200):
        driver.queue(f"a{number}", tenant="a")
        driver.queue(f"b{number}", tenant="b")
    limited(driver, "a", weight=weight)

    started = []
    attempt = only(effects.PersistAttempt, driver.worker())
    for _ in range(100):
        run = only(effects.Execute, driver.send(events.AttemptPersisted(attempt.request_id, attempt.fencing_token)))
        started.append(run.request_id[0])
        told = driver.send(events.AttemptFinished(run.request_id, run.fencing_token))
        attempt = only(effects.PersistAttempt, told)

    assert started.count("a") / len(started) == pytest.approx(share, abs=0.03)


def test_weights_are_kept_of_tenants_that_do_not_count_as_everybody(driver: Driver) -> None:
    quotas = (("half", TenantQuota(weight=0.5)), ("one", TenantQuota()), ("two", TenantQuota(weight=2.0)))
    driver.send(events.QuotasReceived(quotas))
    before = dict(driver.dataplane.state.weights)

    driver.send(events.QuotasReceived(quotas[:2]))

    assert (before, driver.dataplane.state.weights) == ({"half": 0.5, "two": 2.0}, {"half": 0.5})


def test_of_two_that_came_one_that_was_never_accepted_is_given_back_and_no_more(driver: Driver) -> None:
    limited(driver, requests_per_s=0.001, burst_count=3, cost_per_minute=60.0)
    for name in ("r1", "r2"):
        assert is_admitted(driver.arrive(name, work=10.0))

    driver.send(events.AcceptDropped("r1"))

    assert [is_admitted(driver.arrive(f"later-{number}", work=1.0)) for number in range(3)] == [True, True, False]
    meter = driver.dataplane.state.meters["tenant"]
    assert [meter.refusal(driver.now, 0, work, 0) is None for work in (48.0, 48.5)] == [True, False]
