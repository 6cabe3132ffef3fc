"""What a newer frontdoor makes of the journal's unfinished requests, whatever happened to the clock in between."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.generation import (
    ControlNetSelection,
    GenerationSpec,
    LoraSelection,
    ObjectReference,
    Scheduler,
    SpecInput,
)
from pentimento.domain.image_request import CacheMode, ImageFormat, ResolvedRequest
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.records import AcceptedRequest
from pentimento.stores.objects import open_objects
from pentimento.testing.clocks import SetClock
from pentimento.wire.journal import JOURNALLED_REQUEST, resolved_to_bytes
from services.frontdoor.journal.recovery import recover
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import KeepingLimits, ObjectKeeper
from services.frontdoor.requests.jobs import Jobs

ACCEPTED_AT, DEADLINE_S, NOW = 1_000.0, 60.0, 5.0
SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.DDIM, 7)
RESOLVED = ResolvedRequest(SPEC, CacheMode.READ_WRITE, ImageFormat.PNG, None, 60_000)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = open_journal(f"sqlite:///{tmp_path}/journal.sqlite")
    yield journal
    journal.close()


def accept(journal: Journal, request_id: str = "r1", body: bytes = resolved_to_bytes(RESOLVED)) -> None:
    accepted = AcceptedRequest(request_id, "a", body, "", ACCEPTED_AT, deadline_at=ACCEPTED_AT + DEADLINE_S)
    journal.accept(replace(accepted, body_format=JOURNALLED_REQUEST)).result()


@pytest.fixture
def inputs(journal: Journal, tmp_path: Path) -> Inputs:
    keeper = ObjectKeeper(lambda: open_objects(f"file://{tmp_path}/objects"), journal.objects, KeepingLimits())
    return Inputs(keeper, lambda work, name: None)


@pytest.mark.parametrize(
    ("wall_s", "left_s"),
    [
        pytest.param(ACCEPTED_AT + 20.0, 40.0, id="as it should"),
        pytest.param(ACCEPTED_AT - 36_000.0, DEADLINE_S, id="set back by hours"),
        pytest.param(ACCEPTED_AT + 36_000.0, DEADLINE_S - 36_000.0, id="set forward by hours"),
    ],
)
async def test_a_recovered_request_has_what_was_left_of_its_time_and_never_more(
    journal: Journal, inputs: Inputs, wall_s: float, left_s: float
) -> None:
    accept(journal)

    (request,) = (
        await recover(journal, Jobs(lambda event: None), inputs, SetClock(wall_s, NOW), default_deadline_s=600.0)
    ).requests

    assert request.deadline == pytest.approx(NOW + left_s)


async def test_a_recovered_request_is_asked_as_it_was_accepted_with_its_adapters(
    journal: Journal, inputs: Inputs
) -> None:
    adapters = {"loras": (LoraSelection("neon", 0.5),), "controlnets": (ControlNetSelection("canny", b"png"),)}
    asked = replace(RESOLVED, spec=replace(SPEC, **adapters), preview_interval_steps=5)
    accept(journal, body=resolved_to_bytes(asked))
    jobs = Jobs(lambda event: None)

    await recover(journal, jobs, inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0)

    assert jobs.get("r1").request.resolved == asked


@pytest.mark.parametrize("parts", [(), (SpecInput("init_image.image", ObjectReference("k", "sha256:0", 1)),)])
async def test_of_a_recovered_request_it_is_known_whether_it_came_with_images(
    journal: Journal, inputs: Inputs, parts: tuple[SpecInput, ...]
) -> None:
    accept(journal, body=resolved_to_bytes(replace(RESOLVED, inputs=parts)))

    recovered = await recover(
        journal, Jobs(lambda event: None), inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0
    )

    assert [request.has_inputs for request in recovered.requests] == [bool(parts)]


@pytest.mark.parametrize("route", [None, b"\xff", b""], ids=["request", "route", "route of a newer kind"])
async def test_a_request_that_is_not_understood_ends_and_takes_no_other_with_it(
    journal: Journal, inputs: Inputs, route: bytes | None
) -> None:
    accept(journal, "sound")
    accept(journal, "strange", resolved_to_bytes(RESOLVED) + (b"\x98\x06\x01" if route is None else b""))
    if route is not None:
        journal.record_route("strange", route).result()

    recovered = await recover(
        journal, Jobs(lambda event: None), inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0
    )

    assert [request.request_id for request in recovered.requests] == ["sound"]
    record = journal.get("strange", "a").result()
    assert record is not None
    assert (record.state, record.error_reason) == (RequestState.FAILED, "UNREADABLE_REQUEST")
