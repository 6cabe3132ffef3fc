"""Recover the journal's unfinished requests in a newer frontdoor, after any change of the clock."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from google.protobuf.message import Message

from lab.fixtures.clocks import SetClock
from pentimento.api.frontdoor.v1 import journal_pb2 as pb
from pentimento.api.generation.v1 import generation_pb2
from pentimento.domain.errors import Internal
from pentimento.domain.generation import (
    CascadeStage,
    ControlNetSelection,
    FromNoise,
    GenerationSpec,
    LoraSelection,
    ObjectReference,
    Route,
    Scheduler,
    SpecInput,
)
from pentimento.domain.image_request import AdmittedStages, CacheMode, ImageFormat, ResolvedRequest
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest
from pentimento.stores.objects import open_objects
from pentimento.wire.codec import encode, to_bytes
from services.frontdoor.journal.recovery import (
    JOURNALLED_REQUEST,
    recover,
    resolved_from_bytes,
    resolved_to_bytes,
    start_image_from_bytes,
)
from services.frontdoor.objects.inputs import Inputs
from services.frontdoor.objects.object_keeper import ObjectKeeper
from services.frontdoor.requests.jobs import Jobs
from tests.support.values import an_attempt
from tests.unit.wire import samples
from tests.unit.wire.random_values import random_value

ACCEPTED_AT, DEADLINE_S, NOW = 1_000.0, 60.0, 5.0
SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.DDIM, 7)
RESOLVED = ResolvedRequest(SPEC, CacheMode.READ_WRITE, ImageFormat.PNG, None, 60_000)


def accept(journal: Journal, request_id: str = "r1", body: bytes = resolved_to_bytes(RESOLVED)) -> None:
    accepted = AcceptedRequest(request_id, "a", body, "", ACCEPTED_AT, deadline_at=ACCEPTED_AT + DEADLINE_S)
    journal.accept(replace(accepted, body_format=JOURNALLED_REQUEST)).result()


def held_inputs(journal: Journal, folder: Path) -> Inputs:
    keeper = ObjectKeeper(lambda: open_objects(f"file://{folder}/objects"), journal.objects, 1 << 20, 2.0)
    return Inputs(keeper, lambda work, name: None)


@pytest.fixture
def inputs(journal: Journal, tmp_path: Path) -> Inputs:
    return held_inputs(journal, tmp_path)


@pytest.mark.parametrize("wall_step_s", [0.0, 36_000.0, -36_000.0])
async def test_recovered_request_has_time_left_whatever_wall_clock(tmp_path: Path, wall_step_s: float) -> None:
    url, clock = f"sqlite:///{tmp_path}/journal.sqlite", SetClock(ACCEPTED_AT, 100.0)
    with closing(open_journal(url, clock)) as before:
        before.time.resume().result()
        epoch = before.claim_epoch("f").result()
        accept(before)
        clock.wall_s += 5.0
        clock.monotonic_s += 5.0
        before.beat(epoch).result()
    clock = SetClock(ACCEPTED_AT + 20.0 + wall_step_s, 120.0)
    with closing(open_journal(url, clock)) as journal:
        journal.time.resume().result()

        recovered = await recover(journal, Jobs(lambda event: None), held_inputs(journal, tmp_path), clock, 600.0)

    assert [request.deadline for request in recovered.requests] == [120.0 + 40.0]


@pytest.mark.parametrize(("wall_s", "left_s"), [(ACCEPTED_AT + 20.0, 40.0), (ACCEPTED_AT - 36_000.0, DEADLINE_S)])
async def test_request_of_earlier_version_is_measured_by_wall(
    journal: Journal, inputs: Inputs, wall_s: float, left_s: float
) -> None:
    accept(journal)

    (request,) = (
        await recover(journal, Jobs(lambda event: None), inputs, SetClock(wall_s, NOW), default_deadline_s=600.0)
    ).requests

    assert request.deadline == pytest.approx(NOW + left_s)


async def test_recovered_request_keeps_its_adapters(journal: Journal, inputs: Inputs) -> None:
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


POOLS = {
    "its model's own": (None, ("tiny",), ""),
    "a cascade": (
        AdmittedStages((CascadeStage("light", "d", pool="l"), CascadeStage("tiny", pool="t")), "c", planned=True),
        ("l", "t"),
        "c",
    ),
    "one of its model's": (AdmittedStages((CascadeStage("tiny", pool="t2"),)), ("t2",), ""),
}


@pytest.mark.parametrize(("admitted", "pools", "cascade"), POOLS.values(), ids=POOLS.keys())
async def test_a_recovered_request_waits_where_it_was_admitted_to(
    journal: Journal, inputs: Inputs, admitted: AdmittedStages | None, pools: tuple[str, ...], cascade: str
) -> None:
    accept(journal, body=resolved_to_bytes(replace(RESOLVED, admitted=admitted)))

    (request,) = (
        await recover(journal, Jobs(lambda event: None), inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0)
    ).requests

    assert (request.pool, request.cascade, request.cascade_name) == (pools[0], pools, cascade)


ROUTED = {
    "one of its model's pools": (AdmittedStages((CascadeStage("tiny", pool="t2"),)), "tiny", "t2"),
    "another model alone": (AdmittedStages((CascadeStage("tiny", pool="t2"),)), "small", "small"),
    "no cascade any more": (
        AdmittedStages((CascadeStage("light", pool="l"), CascadeStage("tiny", pool="t")), "c", planned=True),
        "light",
        "light",
    ),
}


@pytest.mark.parametrize(("admitted", "model", "pool"), ROUTED.values(), ids=ROUTED.keys())
async def test_recovered_request_with_route_waits_for_its_model_only(
    journal: Journal, inputs: Inputs, admitted: AdmittedStages, model: str, pool: str
) -> None:
    accept(journal, body=resolved_to_bytes(replace(RESOLVED, admitted=admitted)))
    route = to_bytes(Route("route", FromNoise(), model, "sha256:m"), generation_pb2.Route)
    journal.route_and_start(an_attempt("r1"), "w1", route).result()

    (request,) = (
        await recover(journal, Jobs(lambda event: None), inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0)
    ).requests

    assert (request.pool, request.cascade) == (pool, (pool,))


async def test_recovered_requests_are_drawn_each_for_itself(
    journal: Journal, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a plan's shares would send all requests to one model."""
    for request_id in ("r1", "r2"):
        accept(journal, request_id)
    jobs, draws = Jobs(lambda event: None), iter((0.25, 0.75))
    monkeypatch.setattr("services.frontdoor.journal.recovery.random.random", lambda: next(draws))

    await recover(journal, jobs, inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0)

    assert sorted(job.request.draw for job in jobs) == [0.25, 0.75]


@pytest.mark.parametrize("route", [None, b"\xff", b""], ids=["request", "route", "route of a newer kind"])
async def test_unreadable_request_ends_alone(journal: Journal, inputs: Inputs, route: bytes | None) -> None:
    accept(journal, "sound")
    accept(journal, "strange", resolved_to_bytes(RESOLVED) + (b"\x98\x06\x01" if route is None else b""))
    if route is not None:
        journal.route_and_start(an_attempt("strange"), "w1", route).result()

    recovered = await recover(
        journal, Jobs(lambda event: None), inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0
    )

    assert [request.request_id for request in recovered.requests] == ["sound"]
    record = journal.get("strange", "a").result()
    assert record is not None
    assert (record.state, record.error_reason) == (RequestState.FAILED, "UNREADABLE_REQUEST")


async def test_recovered_jobs_start_after_dataplane_knows_all(
    journal: Journal, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel of a request that the dataplane does not know yet would be lost, and would wait for its image."""
    accept(journal, "sound")
    accept(journal, "strange", resolved_to_bytes(RESOLVED) + b"\x98\x06\x01")
    jobs, finish, under_way = Jobs(lambda event: None), journal.finish, list[int]()
    monkeypatch.setattr(journal, "finish", lambda *end: (under_way.append(len(jobs)), finish(*end))[1])

    await recover(journal, jobs, inputs, SetClock(ACCEPTED_AT, NOW), default_deadline_s=600.0)

    assert (under_way, len(jobs)) == ([0], 1)


RECORDED = json.loads((Path(samples.__file__).parent / "golden_bytes.json").read_text())
BODY_SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.EULER, 7)
BODY = ResolvedRequest(BODY_SPEC, CacheMode.OFF, ImageFormat.WEBP, None, 5_000)


def test_resolved_from_bytes_returns_request_written() -> None:
    for seed in range(20):
        resolved = random_value(ResolvedRequest, Random(seed))

        assert resolved_from_bytes(resolved_to_bytes(resolved), JOURNALLED_REQUEST) == resolved, seed


MESSAGE = encode(BODY, pb.JournalledRequest)


def with_unknown_field(message: Message) -> bytes:
    """Add field 99, a number, as a newer version could write it."""
    return message.SerializeToString() + b"\x98\x06\x01"


def with_unknown_lora_field() -> bytes:
    lora = with_unknown_field(encode(BODY, pb.JournalledRequest).spec.loras.add(name="neon"))
    spec = encode(BODY, pb.JournalledRequest).spec.SerializeToString() + b"\x5a" + bytes([len(lora)]) + lora
    return b"\x0a" + bytes([len(spec)]) + spec


@pytest.mark.parametrize(
    ("body", "body_format"),
    [
        pytest.param(with_unknown_field(encode(BODY, pb.JournalledRequest)), JOURNALLED_REQUEST, id="a newer field"),
        pytest.param(with_unknown_lora_field(), JOURNALLED_REQUEST, id="a newer field deep inside"),
        pytest.param(b"\xff\xff", JOURNALLED_REQUEST, id="no message"),
        pytest.param(b"", JOURNALLED_REQUEST, id="nothing"),
        pytest.param(resolved_to_bytes(BODY), 2, id="a newer format"),
        pytest.param(resolved_to_bytes(BODY), 0, id="the format before bodies had one"),
    ],
)
def test_resolved_from_bytes_refuses_body_not_understood(body: bytes, body_format: int) -> None:
    with pytest.raises(Internal) as caught:
        resolved_from_bytes(body, body_format)

    assert caught.value.reason == "UNREADABLE_REQUEST"


@pytest.mark.parametrize("name", ["journalled request", "journalled request without options"])
def test_resolved_from_bytes_reads_recorded_body(name: str) -> None:
    assert resolved_from_bytes(bytes.fromhex(RECORDED[name]), JOURNALLED_REQUEST) == samples.SAMPLES[name]


def test_start_image_from_bytes_refuses_other_bytes() -> None:
    assert start_image_from_bytes(bytes.fromhex(RECORDED["start image"])) == samples.SAMPLES["start image"]
    with pytest.raises(Internal, match="cannot read the journalled request"):
        start_image_from_bytes(b"\xff\xff")
