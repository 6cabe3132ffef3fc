"""Which requests stay replayable until when, on SQLite and on PostgreSQL."""

import threading
from collections.abc import Iterator

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import NotFound, ResourceExhausted
from pentimento.domain.generation import Attempt, ObjectReference, SpecInput
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.records import AcceptedRequest, PicturePin, ResultRecord

INPUT = SpecInput("init_image.image", ObjectReference("inputs/a/1", "sha256:1", 30))


@pytest.fixture
def journal(ledger_url: str, clock: SetClock) -> Iterator[Journal]:
    journal = open_journal(ledger_url, clock)
    yield journal
    journal.close()


def complete(journal: Journal, request_id: str, tenant: str = "a", finished_at: float = 900.0) -> None:
    attempt = Attempt(request_id, 1, 1, "f", 1, tenant)
    image = ObjectReference(f"results/{request_id}", f"sha256:{request_id}", 10)
    journal.accept(AcceptedRequest(request_id, tenant, b"body", "", accepted_at=0.0)).result()
    journal.start_attempt(attempt, "w1").result()
    journal.commit_result(attempt, ResultRecord(image, "png", 8, 8, b"provenance", finished_at)).result()


def pinned(request_id: str, size_bytes: int = 40, until: float = 2000.0, tenant: str = "a") -> PicturePin:
    return PicturePin(request_id, tenant, until, size_bytes, (INPUT,))


def forgotten(journal: Journal, tenant: str = "") -> list[str]:
    return [found.request.request_id for found in journal.forget_finished(1e12, 10, tenant).result()]


def test_a_pinned_request_and_what_it_came_with_are_kept_until_the_pin_ends(journal: Journal, clock: SetClock) -> None:
    complete(journal, "r1")
    complete(journal, "r2")

    assert journal.pins.pin(pinned("r1"), 100).result() is None

    assert journal.pins.find("a", "r1").result() == pinned("r1")
    assert forgotten(journal) == ["r2"] and forgotten(journal, "a") == []
    assert journal.objects.named(["inputs/a/1", "inputs/a/2", "results/r1"]).result() == {"inputs/a/1", "results/r1"}
    clock.wall_s = 2000.0
    assert journal.pins.find("a", "r1").result() is None
    assert journal.objects.named(["inputs/a/1"]).result() == set()
    assert forgotten(journal) == ["r1"]
    assert journal.pins.unpin("a", "r1").result() is False, "it went with its request"


def test_what_may_go_is_looked_for_beside_the_writer_and_stays_where_it_is_pinned_meanwhile(journal: Journal) -> None:
    """Many that stay may come before it."""
    complete(journal, "r1")
    goes_on = threading.Event()
    holding = journal._submit(lambda connection: goes_on.wait(60))

    pin = journal.pins.pin(pinned("r1"), 100)
    gone = journal.forget_finished(1e12, 10)
    read = journal._reader.submit(lambda connection: None)

    read.result(60)
    assert not holding.done()
    goes_on.set()
    assert (pin.result(), gone.result()) == (None, [])


def test_a_tenant_pins_no_more_than_its_quota(journal: Journal, clock: SetClock) -> None:
    for request_id in ("r1", "r2"):
        complete(journal, request_id)
    complete(journal, "r3", tenant="b")
    journal.pins.pin(pinned("r1", 60), 100).result()

    with pytest.raises(ResourceExhausted) as refused:
        journal.pins.pin(pinned("r2", 41), 100).result()

    assert refused.value.reason == "QUOTA_EXCEEDED" and refused.value.metadata == {"quota": "tenant-pinned-bytes"}
    assert journal.pins.find("a", "r2").result() is None
    journal.pins.pin(pinned("r3", 100, tenant="b"), 100).result()
    journal.pins.pin(pinned("r2", 40), 100).result()
    assert journal.pins.pinned_bytes("a").result() == 100
    clock.wall_s = 2000.0
    assert journal.pins.pinned_bytes("a").result() == 0


def test_a_pin_takes_the_place_of_the_one_before(journal: Journal) -> None:
    complete(journal, "r1")
    first, second = pinned("r1", 60), pinned("r1", 100, until=3000.0)
    journal.pins.pin(first, 100).result()

    assert journal.pins.pin(second, 100).result() == first

    assert journal.pins.find("a", "r1").result() == second
    assert journal.pins.unpin("a", "r1").result() is True
    assert journal.pins.pinned_bytes("a").result() == 0
    assert journal.objects.named(["inputs/a/1"]).result() == set()


def test_another_tenants_request_does_not_exist(journal: Journal) -> None:
    complete(journal, "r1")
    journal.pins.pin(pinned("r1"), 100).result()

    for wanted in (pinned("r1", tenant="b"), pinned("r2")):
        with pytest.raises(NotFound) as refused:
            journal.pins.pin(wanted, 100).result()
        assert refused.value.reason == "UNKNOWN_REQUEST"
    assert journal.pins.find("b", "r1").result() is None
    assert journal.pins.unpin("b", "r1").result() is False
    assert journal.pins.find("a", "r1").result() == pinned("r1")


def test_pins_survive_a_restart(ledger_url: str, clock: SetClock) -> None:
    journal = open_journal(ledger_url, clock)
    complete(journal, "r1")
    journal.pins.pin(pinned("r1"), 100).result()
    journal.close()

    journal = open_journal(ledger_url, clock)

    assert journal.pins.find("a", "r1").result() == pinned("r1")
    assert forgotten(journal) == []
    journal.close()
