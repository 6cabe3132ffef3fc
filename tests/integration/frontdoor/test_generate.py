import asyncio
from dataclasses import fields, replace

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.domain.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    PentimentoError,
    Unavailable,
)
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import (
    Accepted,
    AskedControlNet,
    AskedImagePrompt,
    AskedLora,
    CacheMode,
    Completed,
    ImageFormat,
    ImageRequest,
    Progress,
    Routed,
)
from pentimento.domain.jobs import RequestState
from pentimento.rpc import transport
from tests.support.images import a_png


async def test_generate_events_status_and_stored_image(suite: FrontdoorSuite) -> None:
    (model,) = await suite.client.list_models()
    assert (model.name, model.ready_worker_count, model.max_size_px) == ("tiny", 1, 64)

    accepted, routed, *progress, completed = await suite.events()
    assert isinstance(accepted, Accepted) and isinstance(routed, Routed) and isinstance(completed, Completed)
    assert all(isinstance(event, Progress) for event in progress)
    provenance = completed.provenance
    assert completed.image == image_of(provenance.spec)
    assert (provenance.request_id, provenance.worker_id) == (completed.request_id, "w1")
    assert (provenance.steps_run, provenance.attempt_number) == (3, 1)
    assert {"accept", "route", "queue", "execute"} <= {timing.stage for timing in provenance.timings}

    found = await suite.client.get_request(completed.request_id)
    assert (found.state, found.completed) == (RequestState.COMPLETED, completed)
    without = (await suite.client.get_request(completed.request_id, omit_image=True)).completed
    assert without is not None and without.image == b""
    assert await suite.client.cancel(completed.request_id) is RequestState.COMPLETED

    status = await suite.operator.status()
    assert (status.completed_count, status.accepted_count) == (1, 1)
    assert status.frontdoor_epoch and status.journal_id and not status.refusing_workers
    assert [(worker.worker_id, worker.connected) for worker in status.workers] == [("w1", True)]
    assert [(pool.pool, pool.queued_count) for pool in status.pools] == [("tiny", 0)]


async def test_refused_requests_and_unknown_ids_leave_nothing(suite: FrontdoorSuite) -> None:
    for request_, error in (
        (ImageRequest(prompt=""), InvalidArgument),
        (ImageRequest(prompt="x", width_px=2**31), InvalidArgument),
        (ImageRequest(prompt="x", guidance_scale=float("nan")), InvalidArgument),
        (ImageRequest(prompt="x", model="no such"), NotFound),
    ):
        with pytest.raises(error):
            await suite.paint(request_)
    for request_id in ("", "r-unknown", "x" * 5000, "a\0b"):
        for call in (suite.client.get_request(request_id), suite.client.cancel(request_id)):
            with pytest.raises(NotFound):
                await call
    explanation = await suite.client.explain(REQUEST)
    assert (explanation.pool, explanation.route.model, explanation.predicted_wait_ms) == ("tiny", "tiny", 0.0)
    assert explanation.reasons == (
        "plan: none received yet; the frontdoor's settings apply",
        "model: tiny, by the settings",
        "start: noise, the cache has no near entry or is not used",
        "steps: all run, BINDING_STEPS: its number of steps is binding",
        "features: none reused, BINDING_STEPS: its number of steps is binding",
        "wait: none, 1 of 1 places are free",
    )

    status = await suite.operator.status()
    assert (status.accepted_count, status.rejected_count) == (0, 0)
    assert (await suite.paint()).image


async def test_requests_without_seed_draw_one_each_by_credit(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    request = ImageRequest(prompt="a red circle", num_inference_steps=1)

    images = await asyncio.gather(*(suite.paint(request) for _ in range(12)))

    assert len({image.provenance.spec.seed for image in images}) == 12
    assert worker.most_running == 1


async def test_stored_image_changed_or_gone_is_never_served(suite: FrontdoorSuite) -> None:
    completed = await suite.paint()
    (stored,) = (suite.folder / "objects").rglob("results.*")
    stored.write_bytes(b"x" * len(completed.image))

    with pytest.raises(Unavailable) as corrupt:
        await suite.client.get_request(completed.request_id)
    assert corrupt.value.reason == "OBJECT_CORRUPT"
    assert "results" not in corrupt.value.message and "sha256" not in corrupt.value.message
    assert not (suite.folder / "objects" / "quarantine").exists()
    stored.write_bytes(completed.image)
    assert (await suite.client.get_request(completed.request_id)).completed == completed

    stored.unlink()
    with pytest.raises(NotFound) as gone:
        await suite.client.get_request(completed.request_id)
    assert gone.value.reason == "RESULT_GONE"


async def test_omit_progress_leaves_only_accepted_and_completed(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    heard = await suite.events(idempotency_key="a-key", omit_progress=True)
    recorded = await suite.events(idempotency_key="a-key", omit_progress=True)
    several = await suite.events(replace(REQUEST, image_count=2), omit_progress=True)
    await suite.events()

    assert [type(event) for event in heard] == [Accepted, Completed]
    assert [type(event) for event in recorded] == [Accepted, Completed]
    assert [type(event) for event in several] == [Accepted, Completed, Completed]
    assert [order.omit_progress for order in worker.orders] == [True, True, True, False]


# A different value for every field that has one value in this suite (it serves no adapters).
OTHER_VALUES: dict[str, object] = {
    "prompt": "another",
    "negative_prompt": "blurry",
    "model": "tiny",
    "width_px": 32,
    "height_px": 32,
    "num_inference_steps": 2,
    "guidance_scale": 2.0,
    "scheduler": "ddim",
    "eta": 0.5,
    "clip_skip": 1,
    "prompt_syntax": "a1111",
    "seed": 2,
    "loras": (AskedLora("neon"),),
    "controlnets": (AskedControlNet("edges", a_png(32, 32)),),
    "init_image": InitImage(a_png(32, 32), 0.5),
    "cache": CacheMode.OFF,
    "format": ImageFormat.JPEG,
    "encoding_quality": 100,
    "quality": 0.5,
    "deadline_ms": 50_000,
    "max_cost": 1e6,
    "pin_ms": 1000,
    "binding_steps": True,
    "image_count": 2,
    "feature_reuse": True,
    "image_prompts": (AskedImagePrompt("style", a_png(32, 32)),),
}


async def test_idempotency_key_finds_image_and_refuses_other_bodies(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    images = await asyncio.gather(*(suite.paint(idempotency_key="key") for _ in range(4)))
    accepted, *_, again = await suite.events(idempotency_key="key")
    reasons = {}
    for name, value in OTHER_VALUES.items():
        with pytest.raises(PentimentoError) as caught:
            await suite.paint(replace(REQUEST, **{name: value}), idempotency_key="key")  # type: ignore[arg-type]
        reasons[name] = caught.value.reason

    assert {image.request_id for image in images} == {images[0].request_id}
    assert (accepted, again) == (Accepted(images[0].request_id, replayed=True), images[0])
    assert len(worker.executed) == 1
    assert reasons == dict.fromkeys((field.name for field in fields(ImageRequest)), "IDEMPOTENCY_KEY_REUSED")


async def test_disconnected_client_stops_its_request(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()
    stream = suite.client.generate(REQUEST)
    request_id = await suite.accepted(stream)
    await worker.wait_until(lambda: worker.running)

    await stream.aclose()

    await worker.wait_until(lambda: not worker.running)
    assert await suite.client.cancel(request_id) is RequestState.CANCELLED


async def test_request_past_its_deadline_expires_and_its_work_stops(suite: FrontdoorSuite, worker: PacedWorker) -> None:
    worker.hold.clear()

    with pytest.raises(DeadlineExceeded):
        await suite.paint(ImageRequest(prompt="x", num_inference_steps=1, deadline_ms=200))

    await worker.wait_until(lambda: not worker.running)


SIZE = "must be 64 x 64 pixels"


@pytest.mark.parametrize(
    ("fault", "fields_named", "message"),
    [
        (Internal("NAN_IN_LATENT", "step 2 gave NaN"), [], "step 2 gave NaN"),
        (
            InvalidArgument.of("spec.controlnets[0].conditioning_image", SIZE),
            ["controlnets[0].conditioning_image"],  # as its client wrote it
            f"controlnets[0].conditioning_image: {SIZE}",
        ),
    ],
)
async def test_failed_attempt_reports_workers_error(
    suite: FrontdoorSuite, worker: PacedWorker, fault: PentimentoError, fields_named: list[str], message: str
) -> None:
    worker.fail_with = fault
    stream = suite.client.generate(REQUEST)
    request_id = await suite.accepted(stream)

    with pytest.raises(type(fault)) as caught:
        async for _ in stream:
            pass

    status = await suite.client.get_request(request_id)
    assert (caught.value.reason, status.state, status.error_reason) == (
        fault.reason,
        RequestState.FAILED,
        fault.reason,
    )
    assert [one.field for one in getattr(caught.value, "violations", ())] == fields_named
    assert status.error_message == message


@pytest.fixture
def quick_pings(patient_connections: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send keepalive pings five times as often as by default."""
    times = dict(transport.KEEPALIVE)
    times["grpc.keepalive_time_ms"] = transport.KEEPALIVE_TIME_MS // 5
    monkeypatch.setattr(transport, "KEEPALIVE", tuple(times.items()))
    monkeypatch.setattr(transport, "MIN_PING_INTERVAL_MS", transport.MIN_PING_INTERVAL_MS // 5)


@pytest.mark.slow
async def test_silent_stream_stays_open(quick_pings: None, worker: PacedWorker, suite: FrontdoorSuite) -> None:
    """The client sends keepalive pings; the fourth must not be taken for abuse."""
    worker.hold.clear()
    generating = asyncio.ensure_future(suite.paint())
    await asyncio.sleep(0.9)

    worker.hold.set()

    assert (await generating).image
