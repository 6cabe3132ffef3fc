"""Test erasures of tenants in one ledger, on SQLite and PostgreSQL."""

from collections.abc import Iterator

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.erasure import ErasedKind, ErasureState
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.jobs import RequestState
from pentimento.domain.tenants import HashedKey, TenantKey, TenantQuota
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest
from tests.contract.stores.records import NOW_S

QUOTA = TenantQuota(weight=2.0, retention_h=1.5)


@pytest.fixture
def journal(ledger_url: str, dated_clock: SetClock) -> Iterator[Journal]:
    opened = open_journal(ledger_url, dated_clock)
    opened.tenants.create("acme", QUOTA).result()
    opened.tenants.add_key(HashedKey(TenantKey("k1", "acme", NOW_S), "digest")).result()
    yield opened
    opened.close()


def test_deleted_tenant_is_due_after_its_grace_until_finished(journal: Journal) -> None:
    journal.tenants.delete("acme").result()
    erasures = journal.erasures
    assert erasures.due(NOW_S - 1.0).result() == []
    assert erasures.due(NOW_S).result() == ["acme"]
    (waiting,) = erasures.erasures().result()

    running = erasures.begin("acme").result()
    assert erasures.finish("acme", NOW_S + 5.0, "receipt").result()
    assert not erasures.finish("acme", NOW_S + 9.0, "another").result()

    (done,) = erasures.erasures("acme").result()
    assert [one.state for one in (waiting, running, done)] == [*ErasureState]
    assert (done.began_at, done.finished_at, done.receipt) == (NOW_S, NOW_S + 5.0, "receipt")
    assert erasures.due(NOW_S + 99.0).result() == []
    assert journal.tenants.create("acme", QUOTA).result().identity == "*2*acme"


def test_erase_deletes_tenant_is_due_now_and_not_restorable(journal: Journal) -> None:
    asked = journal.erasures.erase("acme", False).result()

    assert (asked.tenant_id, asked.state) == ("acme", ErasureState.WAITING)
    assert journal.erasures.due(0.0).result() == ["acme"]
    assert journal.tenants.tenants().result() == [] and journal.tenants.book().result().keys == ()
    with pytest.raises(NotFound):
        journal.tenants.restore("acme", deleted_after=0.0).result()
    assert journal.erasures.erase("acme", False).result() == asked
    with pytest.raises(NotFound):
        journal.erasures.erase("nobody", False).result()


def test_erase_ends_grace_of_deleted_tenant(journal: Journal) -> None:
    journal.tenants.delete("acme").result()

    journal.erasures.erase("acme", True).result()

    assert journal.erasures.due(0.0).result() == ["acme"]
    assert journal.tenants.tenants().result() == []


def test_erase_that_keeps_tenant_gives_it_another_identity(journal: Journal, dated_clock: SetClock) -> None:
    first = journal.erasures.erase("acme", True).result()
    dated_clock.wall_s += 1.0
    second = journal.erasures.erase("acme", True).result()

    (tenant,) = journal.tenants.tenants().result()
    assert [first.tenant_id, second.tenant_id, tenant.identity] == ["acme", "*2*acme", "*3*acme"]
    assert tenant.quota == QUOTA
    assert [each.key.key_id for each in journal.tenants.book().result().keys] == ["k1"]


def test_planned_objects_count_once_however_often_the_erasure_is_resumed(journal: Journal) -> None:
    erasures = journal.erasures
    erasures.erase("acme", False).result()
    assert not erasures.plan("acme", ErasedKind("inputs", 0)).result()
    assert erasures.plan("acme", ErasedKind("inputs", 5, 500)).result()
    # After a kill the erasure resumes with two of the five left, then with none.
    assert erasures.plan("acme", ErasedKind("inputs", 2, 200)).result()
    assert erasures.plan("acme", ErasedKind("inputs", 0)).result()
    for _ in range(2):
        erasures.settle("acme", "inputs").result()
    assert not erasures.plan("acme", ErasedKind("inputs", 0)).result()

    erasures.plan("acme", ErasedKind("inputs", 1, 7)).result()
    erasures.settle("acme", "inputs").result()
    erasures.replace("acme", [ErasedKind("cache_images", 3, 30)]).result()
    erasures.replace("acme", [ErasedKind("cache_images", 4, 40)]).result()

    (found,) = erasures.erasures("acme").result()
    assert found.deleted == (ErasedKind("cache_images", 4, 40), ErasedKind("inputs", 6, 507))


def test_erase_requests_takes_ended_ones_of_the_tenant_and_counts_them(journal: Journal) -> None:
    journal.erasures.erase("acme", False).result()
    for request_id, tenant in (("ended", "acme"), ("runs", "acme"), ("other", "other")):
        journal.accept(AcceptedRequest(request_id, tenant, b"", "", NOW_S)).result()
    for request_id in ("ended", "other"):
        journal.finish(request_id, RequestState.CANCELLED, "CANCELLED", "").result()

    gone = journal.erase_requests("acme", ["ended", "runs", "other"]).result()
    again = journal.erase_requests("acme", ["ended"]).result()

    assert ([one.request.request_id for one in gone], again) == (["ended"], [])
    assert journal.known(["runs"], "acme").result() and journal.known(["other"], "other").result()
    (found,) = journal.erasures.erasures("acme").result()
    assert found.deleted == (ErasedKind("requests", 1), ErasedKind("results", 0))


def test_unusable_address_of_the_tenants_ledger_names_its_setting(ledger_url: str) -> None:
    with pytest.raises(InvalidArgument, match="tenants_url: must be sqlite"):
        open_journal(ledger_url, tenants_url="mysql://host/tenants")
