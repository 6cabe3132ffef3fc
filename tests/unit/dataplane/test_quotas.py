"""Test quotas of tenants: refused beyond one, counted once admitted, and again after a restart."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.reasons import Reason
from pentimento.domain.tenants import TenantQuota
from tests.unit.dataplane.driver import Driver, kinds, only, play


def limited(driver: Driver, tenant: str = "tenant", **quota: object) -> None:
    driver.send(events.QuotasReceived(((tenant, TenantQuota(**quota)),)))  # type: ignore[arg-type]


def is_admitted(told: list[effects.Effect]) -> bool:
    return kinds(told)[0] is effects.PersistAccepted


RATE = {"requests_per_s": 2.0, "burst_count": 1}
COST = {"cost_per_minute": 600.0}
BURST = {"requests_per_s": 1.0, "burst_count": 3}
ALL = {"requests_per_s": 0.001, "cost_per_minute": 10.0, "concurrent_count": 1}
RARE = {"requests_per_s": 0.001, "burst_count": 2, "cost_per_minute": 60.0}


@pytest.mark.parametrize(
    ("quota", "script", "said"),
    [
        (RATE, "arrive r1, arrive r2", "Reject r2 requests_per_s 500"),
        (RATE, "arrive r1, wait 0.375, arrive r2", "Reject r2 requests_per_s 125"),
        (RATE, "arrive r1, wait 0.5, arrive r2", "PersistAccepted r2"),
        (RATE, "arrive r1, arrive r2 tenant=other, arrive r3 tenant=other", "PersistAccepted r3"),
        # Images of one call count each, and are admitted together or not at all.
        (BURST, "arrive r1 others=r2+r3+r4", ", ".join(f"Reject r{n} requests_per_s 0" for n in (1, 2, 3, 4))),
        (BURST, "arrive r1 others=r2+r3+r4, arrive s1 others=s2+s3, arrive t1", "Reject t1 requests_per_s 1000"),
        # A cost comes back by the minute.
        (COST, "arrive r1 others=r2 work=250, arrive r3 work=250", "Reject r3 cost_per_minute 15000"),
        (COST, "arrive r1 others=r2 work=250, wait 15, arrive r3 work=250", "PersistAccepted r3"),
        (COST, "arrive r1 work=601", "Reject r1 cost_per_minute 0"),
        # A rejected request uses nothing, one that was never accepted is given back, and no more.
        (BURST | COST, "arrive dear work=601, arrive r1 others=r2+r3 work=200", "PersistAccepted r1,"),
        (ALL, "arrive r1 work=10, drop r1, arrive r2 work=10", "PersistAccepted r2"),
        (ALL, "arrive r1 work=10, drop r1, arrive r2 work=10, arrive r3", "Reject r3"),
        (RARE, "arrive r1 work=10, arrive r2 work=10, drop r1, arrive r3 work=50", "PersistAccepted r3"),
        (RARE, "arrive r1 work=10, arrive r2 work=10, drop r1, arrive r3 work=50.5", "Reject r3 cost_per_minute"),
        (RARE, "arrive r1, arrive r2, drop r1, arrive r3, arrive r4", "Reject r4 requests_per_s"),
    ],
)
def test_request_over_quota_is_rejected_with_retry_time(
    driver: Driver, quota: dict[str, float], script: str, said: str
) -> None:
    limited(driver, **quota)

    assert play(driver, script).startswith(said)


def test_rate_names_its_limit(driver: Driver) -> None:
    limited(driver, requests_per_s=2.0, burst_count=1)
    driver.arrive("r1")

    reject = only(effects.Reject, driver.arrive("r2"))

    assert reject.reason == Reason.TENANT_QUOTA
    assert reject.message == "requests_per_s: at most 2 requests a second, 1 at once of this tenant"


def test_request_rejected_for_another_reason_uses_no_quota() -> None:
    driver = Driver(DataplaneSettings(queue_limit=1))
    limited(driver, requests_per_s=0.001, burst_count=2)
    driver.arrive("r1")
    assert only(effects.Reject, driver.arrive("r2")).reason == "QUEUE_FULL"
    driver.send(events.CancelRequested("r1"))
    driver.send(events.AcceptPersisted("r1"))
    driver.send(events.EndPersisted("r1", True))

    assert is_admitted(driver.arrive("r3"))


def test_accepted_request_counts_until_its_end_also_after_a_restart(driver: Driver) -> None:
    recovered = tuple(events.RecoveredRequest(f"old-{number}", "tenant", "m", 1.0, 1000.0) for number in range(2))
    limited(driver, concurrent_count=3)
    driver.send(events.Recovered(recovered))

    play(driver, "worker w1, run r1")
    assert only(effects.Reject, driver.arrive("r2")).message == (
        "concurrent_count: at most 3 requests at once, 3 have not ended of this tenant"
    )
    play(driver, "finish r1")
    assert only(effects.Reject, driver.arrive("r3")).quota == "concurrent_count"
    play(driver, "commit r1")

    assert is_admitted(driver.arrive("r4"))


def test_pools_that_a_tenant_may_not_use_are_refused(driver: Driver) -> None:
    limited(driver, pools=("light",))

    reject = only(effects.Reject, driver.arrive("r1", pool="heavy"))

    assert (reject.reason, reject.quota, reject.retry_after_ms) == (Reason.POOL_NOT_ALLOWED, "pools", 0)
    assert is_admitted(driver.arrive("r2", pool="light"))


def test_new_quotas_replace_old_ones_and_keep_usage(driver: Driver) -> None:
    limited(driver, requests_per_s=0.001, burst_count=2)
    driver.arrive("r1")
    limited(driver, requests_per_s=0.001, burst_count=3)
    assert is_admitted(driver.arrive("r2", others=("r3",)))
    assert only(effects.Reject, driver.arrive("r4"))

    driver.send(events.QuotasReceived(()))

    assert is_admitted(driver.arrive("r5"))
    assert not driver.dataplane.state.meters


def test_a_weight_is_a_share_of_the_queue() -> None:
    """Three quarters of 12 places are for the tenant of weight 3, once both wait."""
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
