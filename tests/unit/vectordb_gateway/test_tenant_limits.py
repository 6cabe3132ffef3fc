"""Bounds of tenants while their ledger is slow, away, or written by another gateway."""

from concurrent.futures import Future

from pentimento.stores.errors import StoreUnavailable
from services.vectordb_gateway.entries.capacity import TenantLimits


class SlowLedger:
    """A ledger that writes on command of a test."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.waiting: list[tuple[str, int | None, Future[None]]] = []

    def limit_tenant(self, tenant: str, most_bytes: int | None) -> "Future[None]":
        writing: Future[None] = Future()
        self.waiting.append((tenant, most_bytes, writing))
        return writing

    def tenant_limits(self) -> dict[str, int]:
        return dict(self.rows)

    def write(self) -> None:
        tenant, most_bytes, writing = self.waiting.pop(0)
        if most_bytes is None:
            self.rows.pop(tenant, None)
        else:
            self.rows[tenant] = most_bytes
        writing.set_result(None)

    def fail(self) -> None:
        self.waiting.pop(0)[2].set_exception(StoreUnavailable("ledger", "away"))


def limits_over(ledger: SlowLedger) -> TenantLimits:
    return TenantLimits(ledger)  # type: ignore[arg-type]


def test_tenant_limit_holds_before_and_after_its_write() -> None:
    ledger = SlowLedger()
    limits = limits_over(ledger)
    limits.set("a", 5)

    before = limits.read()
    ledger.write()

    assert before == limits.read() == {"a": 5}
    assert limits.of("a") == 5


def test_repeated_limit_is_written_once() -> None:
    ledger = SlowLedger()
    limits = limits_over(ledger)
    for most_bytes in (5, 5, None, None):
        limits.set("a", most_bytes)
    limits.set("b", None)

    assert [most for _, most, _ in ledger.waiting] == [5, None]


def test_failed_write_is_repeated_in_the_next_round() -> None:
    ledger = SlowLedger()
    limits = limits_over(ledger)
    limits.set("a", 5)
    ledger.fail()

    assert limits.read() == {"a": 5}
    ledger.write()

    assert (ledger.rows, ledger.waiting) == ({"a": 5}, [])
    assert limits.read() == {"a": 5}
    assert ledger.waiting == []


def test_newest_limit_counts_though_older_writes_come_late() -> None:
    ledger = SlowLedger()
    limits = limits_over(ledger)
    limits.set("a", 5)
    limits.set("a", None)
    ledger.write()

    assert limits.read() == {}
    assert limits.of("a") is None
    while ledger.waiting:
        ledger.write()
    assert ledger.rows == {}


def test_limit_set_during_a_read_is_not_lost() -> None:
    ledger = SlowLedger()
    limits = limits_over(ledger)
    limits.set("a", 5)
    read = ledger.tenant_limits

    def read_just_before_it_is_written() -> dict[str, int]:
        found = read()
        ledger.write()
        return found

    ledger.tenant_limits = read_just_before_it_is_written  # type: ignore[method-assign]

    assert limits.read() == {"a": 5}
    assert limits.of("a") == 5


def test_limit_of_another_gateway_holds_from_next_round() -> None:
    ledger = SlowLedger()
    limits = limits_over(ledger)
    limits.set("a", 5)
    ledger.write()

    ledger.rows = {"b": 7}

    assert limits.read() == {"b": 7}
    assert (limits.of("a"), limits.of("b")) == (None, 7)
