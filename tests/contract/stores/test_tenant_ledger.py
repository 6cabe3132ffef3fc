"""Test tenants, keys and usage in one ledger, on SQLite and PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError, ResourceExhausted
from pentimento.domain.tenants import HashedKey, Tenant, TenantKey, TenantQuota, UsageRow
from pentimento.stores.ledger import open_journal, tenant_ledger
from pentimento.stores.ledger.tenant_ledger import ENDED_KEYS_S, MAX_KEYS, TenantLedger
from tests.contract.stores.records import NOW_S, on_sqlite

QUOTA = TenantQuota(2.5, 4, 8, 1e9, 1 << 40, 3.0, ("light", "heavy"))


@pytest.fixture
def ledger(ledger_url: str, dated_clock: SetClock) -> Iterator[TenantLedger]:
    journal = open_journal(ledger_url, dated_clock)
    yield journal.tenants
    journal.close()


@pytest.fixture
def acme(ledger: TenantLedger) -> TenantLedger:
    """Return the ledger with a tenant acme."""
    ledger.create("acme", QUOTA).result()
    return ledger


def key(key_id: str = "k1", tenant: str = "acme", expires_at: float | None = None) -> HashedKey:
    return HashedKey(TenantKey(key_id, tenant, NOW_S, expires_at), f"digest of {key_id}")


def reason_of(ledger_call: object) -> str:
    with pytest.raises(PentimentoError) as raised:
        ledger_call.result()  # type: ignore[attr-defined]
    return raised.value.reason


def test_create_tenant_survives_a_restart(ledger: TenantLedger, ledger_url: str) -> None:
    assert ledger.create("acme", QUOTA).result() == Tenant("acme", QUOTA, NOW_S, 1)
    ledger.create("'; DROP TABLE tenants; -- ü", TenantQuota()).result()

    other = open_journal(ledger_url)
    found = other.tenants.tenants().result()
    other.close()

    assert found == [Tenant("'; DROP TABLE tenants; -- ü", TenantQuota(), NOW_S), Tenant("acme", QUOTA, NOW_S)]


@on_sqlite
def test_create_tenant_of_taken_name_is_refused(acme: TenantLedger) -> None:

    with pytest.raises(FailedPrecondition, match="there is a tenant acme already") as raised:
        acme.create("acme", TenantQuota()).result()

    assert raised.value.reason == "TENANT_EXISTS"
    assert acme.tenants().result() == [Tenant("acme", QUOTA, NOW_S)]


@on_sqlite
def test_update_quota_needs_newest_revision(acme: TenantLedger) -> None:

    changed = acme.update("acme", TenantQuota(weight=2.0), revision=1).result()

    assert changed == Tenant("acme", TenantQuota(weight=2.0), NOW_S, 2)
    assert reason_of(acme.update("acme", QUOTA, revision=1)) == "TENANT_CHANGED"
    assert reason_of(acme.update("nobody", QUOTA, revision=1)) == "UNKNOWN_TENANT"
    assert acme.tenants().result() == [changed]


def test_delete_tenant_deletes_keys_and_keeps_usage(ledger: TenantLedger) -> None:
    for name in ("acme", "other"):
        ledger.create(name, QUOTA).result()
        ledger.add_key(key(f"k-{name}", name)).result()
    ledger.add_usage([UsageRow("acme", 3600, "requests", 2.0)]).result()

    ledger.delete("acme").result()

    assert reason_of(ledger.delete("acme")) == reason_of(ledger.keys("acme")) == "UNKNOWN_TENANT"
    assert [each.key.key_id for each in ledger.book().result().keys] == ["k-other"]
    assert ledger.usage("acme", 0, 7200).result() == [UsageRow("acme", 3600, "requests", 2.0)]


def test_identities_of_name_are_never_reused(ledger: TenantLedger, dated_clock: SetClock) -> None:
    identities = []
    for _ in range(3):
        dated_clock.wall_s += 1.0
        identities.append(ledger.create("acme", QUOTA).result().identity)
        ledger.delete("acme").result()

    assert identities == ["acme", "*2*acme", "*3*acme"]
    assert ledger.identity_of("acme").result() == "*3*acme"
    assert ledger.identity_of("other").result() == "other"


def test_restore_tenant_within_its_grace(acme: TenantLedger, dated_clock: SetClock) -> None:
    acme.add_key(key()).result()
    acme.delete("acme").result()
    assert reason_of(acme.restore("acme", deleted_after=NOW_S)) == "UNKNOWN_TENANT"

    restored = acme.restore("acme", deleted_after=NOW_S - 1.0).result()

    assert (restored, restored.identity) == (Tenant("acme", QUOTA, NOW_S), "acme")
    assert (acme.tenants().result(), acme.keys("acme").result()) == ([restored], [])


@on_sqlite
def test_restore_tenant_of_taken_name_is_refused(acme: TenantLedger) -> None:
    acme.delete("acme").result()
    acme.create("acme", QUOTA).result()

    assert reason_of(acme.restore("acme", deleted_after=0.0)) == "TENANT_EXISTS"


def test_book_has_tenants_and_good_keys(acme: TenantLedger, dated_clock: SetClock) -> None:
    for each in (key("for ever"), key("for long", expires_at=NOW_S + 10.0), key("revoked")):
        acme.add_key(each).result()
    acme.revoke_key("revoked").result()
    dated_clock.wall_s += 9.0
    assert [each.key.key_id for each in acme.book().result().keys] == ["for ever", "for long"]

    dated_clock.wall_s += 1.0
    book = acme.book().result()

    assert book.tenants == (Tenant("acme", QUOTA, NOW_S),)
    assert book.keys == (key("for ever"),)
    assert book.revision == acme.revision().result()


def test_revision_changes_with_every_change(ledger: TenantLedger) -> None:
    seen = [ledger.revision().result()]
    for change in (
        lambda: ledger.create("acme", QUOTA),
        lambda: ledger.update("acme", TenantQuota(), 1),
        lambda: ledger.add_key(key()),
        lambda: ledger.replace_key("k1", key("k2"), NOW_S + 5.0),
        lambda: ledger.revoke_key("k2"),
        lambda: ledger.delete("acme"),
    ):
        change().result()
        seen.append(ledger.revision().result())
    assert len(set(seen)) == 7

    assert reason_of(ledger.add_key(key())) == "UNKNOWN_TENANT"

    assert ledger.revision().result() == seen[-1]


@on_sqlite
def test_replace_key_ends_old_key_after_grace(acme: TenantLedger) -> None:
    acme.add_key(key("old")).result()
    acme.add_key(key("short", expires_at=NOW_S + 1.0)).result()

    ended = acme.replace_key("old", key("new"), NOW_S + 60.0).result()
    sooner = acme.replace_key("short", key("newer"), NOW_S + 60.0).result()

    assert (ended, sooner) == (key("old", expires_at=NOW_S + 60.0).key, key("short", expires_at=NOW_S + 1.0).key)
    assert {each.key_id for each in acme.keys("acme").result()} == {"old", "new", "short", "newer"}


@on_sqlite
def test_replace_key_ended_or_unknown_is_refused(acme: TenantLedger) -> None:
    acme.add_key(key()).result()
    acme.revoke_key("k1").result()

    assert reason_of(acme.replace_key("k1", key("k2"), NOW_S)) == "KEY_ENDED"
    assert reason_of(acme.replace_key("k9", key("k2"), NOW_S)) == "UNKNOWN_KEY"
    assert reason_of(acme.revoke_key("k9")) == reason_of(acme.tenant_of_key("k9")) == "UNKNOWN_KEY"
    assert [each.key_id for each in acme.keys("acme").result()] == ["k1"]


@on_sqlite
def test_revoke_key_again_keeps_first_time(acme: TenantLedger, dated_clock: SetClock) -> None:
    acme.add_key(key()).result()

    first = acme.revoke_key("k1").result()
    dated_clock.wall_s += 5.0

    assert first == replace(key().key, revoked_at=NOW_S) == acme.revoke_key("k1").result()


def test_add_key_concurrently_stops_at_limit(ledger_url: str, dated_clock: SetClock) -> None:
    stack = ExitStack()
    ledgers = [stack.enter_context(closing(open_journal(ledger_url, dated_clock))).tenants for _ in range(3)]
    ledgers[0].create("acme", QUOTA).result()

    def add(number: int) -> bool:
        try:
            ledgers[number % 3].add_key(key(f"k{number}")).result()
        except ResourceExhausted as error:
            assert error.reason == "TOO_MANY_KEYS"
            return False
        return True

    with stack, ThreadPoolExecutor(3) as threads:
        added = list(threads.map(add, range(MAX_KEYS + 5)))
        count = len(ledgers[0].keys("acme").result())

    assert (added.count(True), count) == (MAX_KEYS, MAX_KEYS)


def test_usage_adds_up_by_hour_and_counter(ledger: TenantLedger) -> None:
    ledger.add_usage([UsageRow("a", 0, "requests", 1.0), UsageRow("a", 3600, "requests", 2.0)]).result()
    ledger.add_usage([UsageRow("a", 3600, "requests", 3.0), UsageRow("a", 3600, "refused:QUEUE_FULL", 1.0)]).result()
    ledger.add_usage([UsageRow("b", 3600, "requests", 7.0)]).result()

    assert ledger.usage("a", 0, 3601).result() == [
        UsageRow("a", 0, "requests", 1.0),
        UsageRow("a", 3600, "refused:QUEUE_FULL", 1.0),
        UsageRow("a", 3600, "requests", 5.0),
    ]
    assert ledger.usage("a", 1, 3600).result() == []


def test_add_usage_concurrently_loses_nothing(ledger_url: str) -> None:
    with ExitStack() as stack:
        ledgers = [stack.enter_context(closing(open_journal(ledger_url))).tenants for _ in range(3)]
        for future in [each.add_usage([UsageRow("a", 0, "requests", 1.0)]) for each in 5 * ledgers]:
            future.result()
        (row,) = ledgers[0].usage("a", 0, 1).result()

    assert row.amount == 15.0


def test_forget_deletes_old_usage_and_keys(acme: TenantLedger, dated_clock: SetClock) -> None:
    for name in ("revoked", "good"):
        acme.add_key(key(name)).result()
    acme.revoke_key("revoked").result()
    acme.add_usage([UsageRow("a", hour, "requests", 1.0) for hour in (0, 3600)]).result()
    dated_clock.wall_s += ENDED_KEYS_S + 1.0

    assert acme.forget(usage_before=3600.0).result() == 2

    assert acme.usage("a", 0, 7200).result() == [UsageRow("a", 3600, "requests", 1.0)]
    assert [each.key_id for each in acme.keys("acme").result()] == ["good"]


@on_sqlite
def test_keys_that_ended_are_listed_thirty_days(acme: TenantLedger, dated_clock: SetClock) -> None:
    for each in (key("good"), key("expired", expires_at=NOW_S + 1.0), key("revoked")):
        acme.add_key(each).result()
    dated_clock.wall_s += 1.0
    acme.revoke_key("revoked").result()

    dated_clock.wall_s += 30 * 86_400.0 - 0.5
    kept = {each.key_id for each in acme.keys("acme").result()}
    forgotten = acme.forget(usage_before=0.0).result()
    dated_clock.wall_s += 1.0

    assert (kept, forgotten) == ({"good", "expired", "revoked"}, 0)
    assert [each.key_id for each in acme.keys("acme").result()] == ["good"]
    assert acme.forget(usage_before=0.0).result() == 2


def test_keys_are_listed_oldest_first(acme: TenantLedger) -> None:
    for name, created_at in (("b", NOW_S + 2.0), ("c", NOW_S + 1.0), ("a", NOW_S + 3.0)):
        acme.add_key(HashedKey(TenantKey(name, "acme", created_at), f"digest of {name}")).result()

    assert [each.key_id for each in acme.keys("acme").result()] == ["c", "b", "a"]
    assert [each.key.key_id for each in acme.book().result().keys] == ["a", "b", "c"]


@on_sqlite
def test_create_tenant_beyond_limit_is_refused(ledger: TenantLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (tenant_ledger.MAX_TENANTS, MAX_KEYS, ENDED_KEYS_S) == (10_000, 20, 2_592_000.0)
    monkeypatch.setattr(tenant_ledger, "MAX_TENANTS", 2)
    for name in ("a", "b"):
        ledger.create(name, QUOTA).result()

    with pytest.raises(ResourceExhausted, match="there are 2 tenants, as many as there may be") as refused:
        ledger.create("c", QUOTA).result()

    assert refused.value.reason == "TOO_MANY_TENANTS"
    assert [tenant.name for tenant in ledger.tenants().result()] == ["a", "b"]


@on_sqlite
def test_errors_name_unknown_tenant_and_key(ledger: TenantLedger) -> None:
    with pytest.raises(NotFound, match=r"^tenant: there is no tenant acme$"):
        ledger.add_key(key()).result()
    with pytest.raises(NotFound, match=r"^key_id: there is no key k9$"):
        ledger.revoke_key("k9").result()
