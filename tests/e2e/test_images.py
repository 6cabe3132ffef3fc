"""Test images from a prompt over gRPC, through every service."""

import asyncio
import uuid
from contextlib import aclosing

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest, Progress, Routed
from pentimento.domain.jobs import RequestState
from pentimento.sdk import AsyncClient, GeneratedImage
from pentimento.sdk.generated_image import read_provenance, with_provenance
from pentimento.supervisor.local import LocalSuite
from tests.support.tiny_models import size_px

QUICK = 4


def request(prompt: str = "a red circle on a white background", **fields: object) -> ImageRequest:
    return ImageRequest(prompt, **{"num_inference_steps": QUICK, "cache": CacheMode.OFF, **fields})  # type: ignore[arg-type]


async def test_image_has_its_provenance(client: AsyncClient) -> None:
    picture = await client.generate(request("a large red circle on a white background", seed=7))

    provenance = picture.provenance
    assert picture.to_pil().size == (picture.width_px, picture.height_px) == size_px()
    assert provenance.spec.prompt == "a large red circle on a white background"
    assert (provenance.spec.model, provenance.spec.seed, provenance.spec.num_inference_steps) == (
        "tiny-heavy",
        7,
        QUICK,
    )
    assert (provenance.steps_run, provenance.steps_saved) == (QUICK, 0)
    assert provenance.route.start == FromNoise()
    assert provenance.worker_id == "tiny-heavy-0"
    assert provenance.model_digest == provenance.route.model_digest != ""
    assert provenance.timings


async def test_seed_and_scheduler_decide_image_and_are_recorded(client: AsyncClient) -> None:
    first, same, other = [await client.generate(request(seed=seed)) for seed in (3, 3, 4)]
    document = read_provenance(with_provenance(first.data, first.provenance))

    assert first.data == same.data != other.data
    assert (document["spec"]["seed"], document["route"]["start"]["kind"]) == (3, "FromNoise")
    for scheduler in ("ddim", "euler"):
        image = await client.generate(request(scheduler=scheduler))
        assert image.provenance.spec.scheduler.value == scheduler


async def test_progress_counts_up_with_png_previews(client: AsyncClient) -> None:
    steps, previews = [], []
    async with aclosing(client.stream(request(num_inference_steps=60), preview_interval_steps=1)) as events:
        async for event in events:
            if isinstance(event, Progress):
                steps.append((event.step, event.step_count))
                previews.append(event.preview)

    assert steps == sorted(steps)
    assert {count for _, count in steps} == {60}
    assert any(preview.startswith(b"\x89PNG") for preview in previews)


async def test_similar_prompt_starts_from_a_cached_latent(client: AsyncClient) -> None:
    cached = {"cache": CacheMode.READ_WRITE, "num_inference_steps": 20}
    first = await client.generate(request("a small blue star in the centre on a black background", seed=1, **cached))

    second = await generate_until_cached(client, request("a small blue star in the centre on black", seed=2, **cached))

    start = second.provenance.route.start
    assert isinstance(start, FromLatent)
    assert start.donor.similarity > 0.65
    assert second.provenance.steps_saved == start.saved_steps > 0
    assert second.provenance.steps_run == 20 - start.saved_steps
    assert second.data != first.data


async def generate_until_cached(client: AsyncClient, wanted: ImageRequest) -> GeneratedImage:
    """Repeat the request until it hits: an entry is committed after its image was answered."""
    async with asyncio.timeout(120):
        while True:
            picture = await client.generate(wanted)
            if picture.provenance.steps_saved:
                return picture


async def test_cache_that_is_off_is_neither_read_nor_written(client: AsyncClient) -> None:
    wanted = request("a huge golden ring at sunset", num_inference_steps=20)
    await client.generate(wanted)

    again = await client.generate(wanted)

    assert again.provenance.route.start == FromNoise()


async def test_key_finds_image_and_refuses_another_body(client: AsyncClient) -> None:
    key = uuid.uuid4().hex
    first = await client.generate(request("a red circle"), idempotency_key=key)

    second = await client.generate(request("a red circle"), idempotency_key=key)
    with pytest.raises(FailedPrecondition):
        await client.generate(request("a blue circle"), idempotency_key=key)
    status = await client.get_request(first.provenance.request_id)

    assert (second.provenance.request_id, second.data) == (first.provenance.request_id, first.data)
    assert status.state is RequestState.COMPLETED
    assert status.completed is not None and status.completed.image == first.data


async def test_cancel_ends_the_stream(client: AsyncClient) -> None:
    async with aclosing(client.stream(request(num_inference_steps=1000))) as events:
        request_id = (await anext(events)).request_id  # type: ignore[union-attr] # the first event is Accepted
        await first(events, Routed)
        await client.cancel(request_id)
        with pytest.raises(Exception, match=r"(?i)cancel"):
            await first(events, Completed)

    assert await final_state(client, request_id) is RequestState.CANCELLED


async def first(events: object, kind: type) -> object:
    async for event in events:  # type: ignore[attr-defined] # an async generator
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the stream ended without {kind.__name__}")


async def final_state(client: AsyncClient, request_id: str) -> RequestState:
    async with asyncio.timeout(120):
        while True:
            status = await client.get_request(request_id, omit_image=True)
            if status.state.terminal:
                return status.state
            await asyncio.sleep(0.02)


async def test_models_are_listed_with_their_limits(client: AsyncClient, suite: LocalSuite) -> None:
    (model,) = await client.list_models()

    assert (model.name, model.ready_worker_count) == ("tiny-heavy", 1)
    assert {"ddim", "euler"} <= set(model.schedulers)
    assert model.size_multiple_px > 0
