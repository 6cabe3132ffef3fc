"""Registrations in memory equal the ledger, even if a caller left during the write."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from pentimento.domain.errors import NotFound
from pentimento.domain.models import ModelVariant
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.fleet_ledger import FleetLedger, open_fleet_ledger
from services.controller.repository import ModelRepository
from tests.unit.controller.left_callers import cancelled_once_committed
from tests.unit.controller.registered import variant

LIGHT = variant("light")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[FleetLedger]:
    opened = open_fleet_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    yield opened
    opened.close()


async def test_registration_of_cancelled_call_is_kept(ledger: FleetLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[ModelVariant, ...]] = []
    repository = ModelRepository(ledger, lambda: told.append(repository.registered.models))

    await cancelled_once_committed(ledger, "register", lambda: repository.register_model(LIGHT), monkeypatch)

    assert (repository.registered.models, told) == ((LIGHT,), [(LIGHT,)])


async def test_removal_of_cancelled_call_is_kept(ledger: FleetLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = ModelRepository(ledger)
    await repository.register_model(LIGHT)

    await cancelled_once_committed(ledger, "unregister", lambda: repository.remove_model("light"), monkeypatch)

    assert repository.registered.models == ()


async def test_removal_with_lost_answer_can_be_repeated(ledger: FleetLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = ModelRepository(ledger)
    await repository.register_model(LIGHT)
    real = ledger.unregister

    def lost(kind: str, name: str) -> "Future[bool]":
        real(kind, name).result(60)
        answer: Future[bool] = Future()
        answer.set_exception(StoreUnavailable("ledger", "the connection broke during the commit"))
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "unregister", lost)
        with pytest.raises(StoreUnavailable):
            await repository.remove_model("light")

    await repository.remove_model("light")

    assert repository.registered.models == ()
    with pytest.raises(NotFound):
        await repository.remove_model("light")
