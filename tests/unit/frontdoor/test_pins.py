"""Test pins: without the gateway, their longest time, and the bytes that a replay counts."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.generation import Donor, FromLatent, FromNoise, ObjectReference, SpecInput, Start
from pentimento.domain.image_request import ReplayInput, ReplayRequest
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, PicturePin
from services.frontdoor.requests.pins import ROW_BYTES, Pins

HOUR_MS = 3_600_000
LATENT = ObjectReference("cache/latent", "sha256:" + "0" * 64, 100)
HIT = FromLatent(LATENT, 10, 50, 1.0, Donor("entry", LATENT.digest, 0.9))
CLOCK = SetClock()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite", CLOCK)
    journal.accept(AcceptedRequest("r1", "acme", b"", "", CLOCK.wall(), deadline_at=CLOCK.wall() + 60)).result()
    yield journal
    journal.close()


class ForgetfulGateway:
    """A gateway that pins the entries that it still has."""

    def __init__(self) -> None:
        self.has_it = True

    async def pin_object(self, tenant: str, request_id: str, reference: ObjectReference, *times: float) -> None:
        if not self.has_it:
            raise NotFound("ANCESTOR_GONE", "it is not kept any more")


class OneInput:
    """An object keeper that has one image."""

    async def get(self, reference: ObjectReference) -> bytes:
        return b"kept"


@pytest.fixture
def gateway() -> ForgetfulGateway:
    return ForgetfulGateway()


@pytest.fixture
def pins(journal: Journal, gateway: ForgetfulGateway) -> Pins:
    return Pins(journal, gateway, OneInput(), CLOCK, 1 << 20)  # type: ignore[arg-type]


async def keep(pins: Pins, pin_ms: int, start: Start = HIT) -> list[str]:
    """Return the notes of the image about its pin."""
    notes: list[str] = []
    resolved = SimpleNamespace(pin_ms=pin_ms, inputs=())
    request = SimpleNamespace(tenant="acme", request_id="r1", resolved=resolved)
    execution: Any = SimpleNamespace(result=SimpleNamespace(steps_saved=10), route=SimpleNamespace(start=start))
    job: Any = SimpleNamespace(request=request, note=notes.append)
    await pins.keep(job, execution)
    return notes


def pinned(journal: Journal) -> PicturePin | None:
    return journal.pins.find("acme", "r1").result()


async def test_start_lost_by_gateway_is_not_pinned(pins: Pins, gateway: ForgetfulGateway, journal: Journal) -> None:
    gateway.has_it = False

    assert await keep(pins, HOUR_MS) == ["not pinned: ANCESTOR_GONE"]

    assert pinned(journal) is None
    assert journal.pins.pinned_bytes("acme").result() == 0


async def test_a_longer_pin_that_the_gateway_refuses_leaves_the_one_before_it(
    pins: Pins, gateway: ForgetfulGateway, journal: Journal
) -> None:
    await keep(pins, HOUR_MS)
    before = pinned(journal)
    gateway.has_it = False

    await keep(pins, 2 * HOUR_MS)

    assert before == PicturePin("r1", "acme", CLOCK.wall() + 3600, ROW_BYTES + LATENT.size_bytes, ())
    assert pinned(journal) == before


async def test_image_from_noise_needs_no_gateway(pins: Pins, gateway: ForgetfulGateway, journal: Journal) -> None:
    gateway.has_it = False

    assert await keep(pins, HOUR_MS, FromNoise()) == []

    assert pinned(journal) == PicturePin("r1", "acme", CLOCK.wall() + 3600, ROW_BYTES, ())


def test_the_longest_time_is_one_that_may_be_had(pins: Pins) -> None:
    pins.check_duration("duration_ms", 90 * 24 * HOUR_MS)

    with pytest.raises(InvalidArgument):
        pins.check_duration("duration_ms", 90 * 24 * HOUR_MS + 1)


async def test_sent_bytes_take_precedence_over_kept_ones(pins: Pins, journal: Journal) -> None:
    inputs = (SpecInput("init_image.image", LATENT), SpecInput("init_image.mask", LATENT))
    journal.pins.pin(PicturePin("r1", "acme", CLOCK.wall() + 60, 1, inputs), 1 << 20).result()

    asked = await pins.with_kept_inputs("acme", ReplayRequest("r1", (ReplayInput("init_image.image", b"sent"),)))

    assert asked.data_by_field == {"init_image.image": b"sent", "init_image.mask": b"kept"}
