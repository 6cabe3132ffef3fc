"""Test images over HTTP, through the real edge and frontdoor, with OpenAI's unmodified client."""

import asyncio
import base64
from pathlib import Path

import pytest

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.domain.jobs import RequestState
from tests.integration.edge.conftest import EdgeUnderTest, openai_client
from tests.integration.frontdoor.inputs import png


async def test_image_is_read_by_openai_client(edge: EdgeUnderTest) -> None:
    async with openai_client(edge) as ai:
        answer = await ai.images.generate(prompt="a red circle", extra_body={"seed": 5, "num_inference_steps": 4})

    spec = edge.worker.executed[0]
    assert (spec.prompt, spec.seed, spec.num_inference_steps) == ("a red circle", 5, 4)
    assert answer.data is not None and answer.usage is not None
    assert base64.b64decode(answer.data[0].b64_json or "") == image_of(spec)
    assert (answer.size, answer.output_format) == (f"{spec.width_px}x{spec.height_px}", "png")
    assert answer.usage.output_tokens == spec.width_px * spec.height_px // 64
    assert answer.usage.input_tokens_details.text_tokens == 3
    assert answer.usage.total_tokens == 3 + answer.usage.output_tokens


async def test_extensions_reach_the_frontdoor(edge: EdgeUnderTest) -> None:
    answer = await edge.generate(
        size="64x32", guidance_scale=2.5, negative_prompt="blue", num_inference_steps=2, seed=2**63, provenance=True
    )

    document = answer.json()
    spec = edge.worker.executed[0]
    assert (spec.width_px, spec.height_px, spec.guidance_scale, spec.seed) == (64, 32, 2.5, 2**63)
    assert (spec.negative_prompt, document["size"], document["data"][0]["seed"]) == ("blue", "64x32", 2**63)
    assert document["data"][0]["provenance"]["steps_run"] == 2


async def test_a_file_keeps_as_much_as_every_kind_of_call_asks(edge: EdgeUnderTest) -> None:
    asked = {"prompt": "x", "num_inference_steps": 1, "output_format": "webp"}
    form = {"files": {"image": png()}, "data": {**asked, "output_compression": "3", "num_inference_steps": "2"}}
    await edge.http.post("/v1/images/generations", json={**asked, "output_compression": 0})
    await edge.http.post("/v1/images/generations", json={**asked, "output_compression": 2, "stream": True})
    await edge.http.post("/v1/images/edits", **form)  # type: ignore[arg-type]
    job = await edge.http.post("/v1/jobs", json={**asked, "output_compression": 4})
    await edge.http.get(f"/v1/jobs/{job.json()['id']}/events")
    await edge.http.post("/v1/images/generations", json=asked)

    asked_for = [(order.image_format, order.encoding_quality) for order in edge.worker.orders]
    assert asked_for == [("webp", 0), ("webp", 2), ("webp", 3), ("webp", 4), ("webp", 100)]


async def test_stream_ends_with_the_image(edge: EdgeUnderTest) -> None:
    async with openai_client(edge) as ai:
        stream = await ai.images.generate(prompt="a red circle", stream=True, extra_body={"num_inference_steps": 4})
        events = [event async for event in stream]

    assert [event.type for event in events] == ["image_generation.completed"]
    assert base64.b64decode(events[0].b64_json) == image_of(edge.worker.executed[0])


async def test_a_client_that_leaves_frees_the_worker(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    asking = asyncio.ensure_future(edge.generate())
    await edge.worker.wait_until(lambda: edge.worker.running)
    request_id = next(iter(edge.worker.running))[0]

    asking.cancel()
    await asyncio.wait([asking])
    async with asyncio.timeout(60):
        await edge.worker.wait_until(lambda: not edge.worker.running)

    assert (await edge.suite.client.get_request(request_id)).state is RequestState.CANCELLED


async def test_models_are_listed_with_their_limits(edge: EdgeUnderTest) -> None:
    from openai import NotFoundError

    async with openai_client(edge) as ai:
        listed = [model async for model in ai.models.list()]
        told = await ai.models.retrieve(listed[0].id)
        with pytest.raises(NotFoundError) as unknown:
            await ai.models.retrieve("no-such-model")

    assert (unknown.value.code, unknown.value.param) == ("UNKNOWN_MODEL", "model")
    assert told.id == edge.worker.held.model
    assert told.to_dict()["pentimento"]["max_steps"] == edge.worker.held.max_steps


async def test_health_ready_and_metrics(edge: EdgeUnderTest) -> None:
    await edge.generate()
    health, ready, metrics = [await edge.http.get(path) for path in ("/health", "/ready", "/metrics")]
    assert (health.status_code, ready.status_code, ready.json()) == (200, 200, {"status": "ready"})
    assert 'pentimento_edge_requests_total{route="/v1/images/generations",status="200"}' in metrics.text

    server, reason = edge.suite.frontdoor.server, "STORE_FULL: ledger is full: no room"
    server.hold_back(reason)
    blocked = await edge.http.get("/ready")
    assert (blocked.status_code, blocked.json()) == (503, {"status": "not ready", "reason": reason})
    server.hold_back("")
    assert (await edge.http.get("/ready")).json() == {"status": "ready"}

    server.set_not_serving()
    assert [(await edge.http.get(path)).status_code for path in ("/ready", "/health")] == [503, 200]


async def test_path_with_slash_and_any_authorization_are_taken(edge: EdgeUnderTest) -> None:
    """The suite has no tokens."""
    from openai.types import ImagesResponse

    async with openai_client(edge, "/v1/") as ai:
        answer = await ai.post(
            "/images/generations/", body={"prompt": "x", "num_inference_steps": 1}, cast_to=ImagesResponse
        )
    assert answer.data and answer.data[0].b64_json
    for path, authorization in (("/v1/models/", "Bearer"), ("/v1/models", "Basic Og=="), ("/v1/models", "")):
        listed = await edge.http.get(path, headers={"Authorization": authorization})
        assert listed.status_code == 200


async def test_several_images_come_in_order_with_own_seeds(edge: EdgeUnderTest) -> None:
    answer = await edge.generate(n=3, seed=7, num_inference_steps=1, prompt="é" * 5, negative_prompt="x")
    async with openai_client(edge) as ai:
        stream = await ai.images.generate(prompt="x", n=2, stream=True, extra_body={"num_inference_steps": 1})
        events = [event async for event in stream]

    document = answer.json()
    generated = {spec.seed: image_of(spec) for spec in edge.worker.executed}
    assert [image["seed"] for image in document["data"]] == [7, 8, 9]
    assert [image["image_index"] for image in document["data"]] == [0, 1, 2]
    assert [base64.b64decode(image["b64_json"]) for image in document["data"]] == [generated[s] for s in (7, 8, 9)]
    assert "failed" not in document
    # Prompts by bytes, images by pixels.
    assert document["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"text_tokens": 3, "image_tokens": 0},
        "output_tokens": 48,
        "output_tokens_details": {"text_tokens": 0, "image_tokens": 48},
        "total_tokens": 51,
    }
    assert [event.type for event in events] == ["image_generation.completed"] * 2
    assert {event.to_dict()["image_index"] for event in events} == {0, 1}


async def test_null_and_empty_values_are_absent(edge: EdgeUnderTest) -> None:
    """OpenAI's clients send `None`, and Open WebUI sends the fields that its user leaves empty."""
    optional = ("n", "size", "quality", "style", "user", "background", "moderation", "output_format", "response_format")
    words = ("size", "quality", "style", "background", "output_format", "response_format")
    async with openai_client(edge) as ai:
        await ai.images.generate(
            prompt="x", **dict.fromkeys(optional), extra_body={"seed": None, "num_inference_steps": 1}
        )  # type: ignore[call-overload]
        await ai.images.generate(prompt="x", **{**dict.fromkeys(words, ""), "style": "vivid"})  # type: ignore[call-overload]

    assert len(edge.worker.executed) == 2


async def test_alias_of_a_model_is_listed_and_taken(folder: Path, worker: PacedWorker) -> None:
    from openai import AsyncOpenAI

    name = worker.held.model
    aliases = (f"gpt-image-1={name}", "dall-e-3=", "gone=no-such-model")
    async with (
        running_suite(folder),
        running_edge(folder, f"unix:{folder / 'f'}", model_aliases=aliases) as running,
        AsyncOpenAI(base_url=f"http://{running.listener.address}/v1", api_key="any", timeout=60) as ai,
    ):
        listed = {model.id: model.to_dict()["pentimento"] async for model in ai.models.list()}
        for model in ("gpt-image-1", "dall-e-3"):
            await ai.images.generate(model=model, prompt="x", extra_body={"num_inference_steps": 1})

    assert set(listed) == {name, "gpt-image-1", "dall-e-3"}
    assert listed["gpt-image-1"] == {**listed[name], "alias_of": name}
    assert listed["dall-e-3"] == {"alias_of": ""}
    assert [spec.model for spec in worker.executed] == [name, name]
