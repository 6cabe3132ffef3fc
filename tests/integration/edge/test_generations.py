"""Pictures over HTTP, through the real edge and frontdoor, as OpenAI's unmodified client asks for them."""

import asyncio
import base64
from pathlib import Path

import pytest

from lab.fixtures.edge_suite import running_edge
from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.domain.requests import RequestState
from tests.integration.edge.conftest import EdgeUnderTest, openai_client
from tests.integration.frontdoor.inputs import png


async def test_a_picture_comes_as_openais_client_reads_it(edge: EdgeUnderTest) -> None:
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


async def test_a_stream_ends_with_the_picture(edge: EdgeUnderTest) -> None:
    async with openai_client(edge) as ai:
        stream = await ai.images.generate(prompt="a red circle", stream=True, extra_body={"num_inference_steps": 4})
        events = [event async for event in stream]

    assert [event.type for event in events] == ["image_generation.completed"]
    assert base64.b64decode(events[0].b64_json) == image_of(edge.worker.executed[0])


WRONG_FIELDS: tuple[tuple[dict[str, object], str, str], ...] = (
    ({"prompt": ""}, "prompt", "1 to 32000 characters"),
    ({"prompt": 7}, "prompt", "must be a string"),
    ({"size": "0x64"}, "size", "WIDTHxHEIGHT"),
    ({"size": "65x64"}, "size", "multiple of"),
    ({"num_inference_steps": 0}, "num_inference_steps", "between 1 and"),
    ({"num_inference_steps": 2**70}, "num_inference_steps", "between"),
    ({"num_inference_steps": True}, "num_inference_steps", "must be an integer"),
    ({"guidance_scale": "NaN"}, "guidance_scale", "must be a number"),
    ({"n": 0}, "n", "between 1 and 10"),
    ({"seed": -1}, "seed", "between 0 and"),
    ({"background": "transparent"}, "background", "no model here"),
    ({"quality": "ultra"}, "quality", "must be one of auto"),
    ({"output_compression": 99}, "output_compression", "must be 100 if output_format is png, got 99"),
    ({"output_format": "jpeg", "output_compression": 101}, "output_compression", "between 0 and 100"),
    ({"output_format": "webp", "output_compression": "9"}, "output_compression", "must be an integer"),
    ({"deadline_ms": -5}, "deadline_ms", "between 1 and"),
    ({"max_cost": 1}, "max_cost", "at least the request's cost"),
    ({"loras": [{"scale": 1}]}, "loras[0].name", "is required"),
    ({"controlnets": [{"name": "x", "conditioning_image": "*"}]}, "controlnets[0].conditioning_image", "base64"),
    ({"image_url": "http://127.0.0.1/"}, "image_url", "is not a parameter"),
)


async def test_a_wrong_field_is_named_and_nothing_is_painted(edge: EdgeUnderTest) -> None:
    for values, param, says in WRONG_FIELDS:
        answer = await edge.generate(**values)

        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert says in error["message"]
    assert edge.worker.executed == []


async def test_the_field_is_told_that_names_what_is_not_there(edge: EdgeUnderTest) -> None:
    named: tuple[tuple[dict[str, object], str, str], ...] = (
        ({"model": "no-such"}, "model", "UNKNOWN_MODEL"),
        ({"loras": [{"name": "no-such"}]}, "loras[0].name", "UNKNOWN_LORA"),
    )
    for values, param, code in named:
        answer = await edge.generate(**values)

        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, code, param)


async def test_what_is_no_json_object_is_refused(edge: EdgeUnderTest) -> None:
    headers = {"content-type": "application/json"}
    deep, long = b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}"
    for body in (b"", b"[]", b"{", b'{"prompt": NaN}', b'{"prompt": "\xff"}', deep, long):
        answer = await edge.http.post("/v1/images/generations", content=body, headers=headers)

        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body"), body[:40]


async def test_half_a_surrogate_pair_is_refused(edge: EdgeUnderTest) -> None:
    answer = await edge.http.post(
        "/v1/images/generations", content=rb'{"prompt": "\ud800"}', headers={"content-type": "application/json"}
    )

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


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


async def test_a_key_finds_the_first_request_and_refuses_another_body(edge: EdgeUnderTest) -> None:
    headers = {"Idempotency-Key": "k1"}
    body = {"prompt": "a red circle", "seed": 1}

    first = await edge.http.post("/v1/images/generations", json=body, headers=headers)
    again = await edge.http.post("/v1/images/generations", json=body, headers=headers)
    other = await edge.http.post("/v1/images/generations", json={**body, "seed": 2}, headers=headers)

    assert first.json()["data"] == again.json()["data"]
    assert len(edge.worker.executed) == 1
    assert (other.status_code, other.headers["x-should-retry"]) == (409, "false")


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

    assert (health.status_code, ready.status_code) == (200, 200)
    assert 'pentimento_edge_requests_total{route="/v1/images/generations",status="200"}' in metrics.text


async def test_a_frontdoor_that_does_not_serve_is_told(edge: EdgeUnderTest) -> None:
    edge.suite.frontdoor.server.set_not_serving()

    ready = await edge.http.get("/ready")

    assert (ready.status_code, (await edge.http.get("/health")).status_code) == (503, 200)


async def test_ready_frontdoor_that_accepts_nothing_gives_reason(edge: EdgeUnderTest) -> None:
    edge.suite.frontdoor.server.hold_back("STORE_FULL: ledger is full: no room")
    blocked = await edge.http.get("/ready")
    edge.suite.frontdoor.server.hold_back("")
    ready = await edge.http.get("/ready")

    assert (blocked.status_code, blocked.json()) == (
        503,
        {"status": "not ready", "reason": "STORE_FULL: ledger is full: no room"},
    )
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


async def test_an_unknown_path_is_not_found(edge: EdgeUnderTest) -> None:
    for path in ("/nothing", "/v1", "/v1/images/generations//", "/../etc/passwd", "/v1/models/a/b"):
        answer = await edge.http.get(path)

        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "UNKNOWN_PATH"), path


@pytest.mark.parametrize(
    ("path", "methods"), [("/v1/images/generations", {"POST"}), ("/v1/jobs", {"GET", "HEAD", "POST"})]
)
async def test_another_method_is_refused(edge: EdgeUnderTest, path: str, methods: set[str]) -> None:
    answer = await edge.http.put(path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "WRONG_METHOD")
    assert set(answer.headers["allow"].split(", ")) == methods


FOREIGN_PAGES = (
    ({"origin": "https://evil.example"}, "WRONG_ORIGIN"),
    ({"origin": "null"}, "WRONG_ORIGIN"),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, "WRONG_ORIGIN"),
    ({"host": "evil.example"}, "WRONG_HOST"),
)


async def test_pages_of_others_are_refused(edge: EdgeUnderTest) -> None:
    for headers, code in FOREIGN_PAGES:
        answer = await edge.http.post("/v1/images/generations", json={"prompt": "a red circle"}, headers=headers)

        assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
        assert "access-control-allow-origin" not in answer.headers
    assert edge.worker.executed == []


async def test_a_form_that_any_page_may_send_is_refused(edge: EdgeUnderTest) -> None:
    answer = await edge.http.post(
        "/v1/images/generations", content=b'{"prompt": "x"}', headers={"content-type": "text/plain"}
    )

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Type")


async def test_a_path_may_end_with_a_slash(edge: EdgeUnderTest) -> None:
    from openai.types import ImagesResponse

    async with openai_client(edge, "/v1/") as ai:
        answer = await ai.post(
            "/images/generations/", body={"prompt": "x", "num_inference_steps": 1}, cast_to=ImagesResponse
        )
    listed = await edge.http.get("/v1/models/")

    assert answer.data and answer.data[0].b64_json
    assert listed.status_code == 200


async def test_null_and_empty_values_are_absent(edge: EdgeUnderTest) -> None:
    """As OpenAI's clients send `None`, and Open WebUI what its user leaves open."""
    optional = ("n", "size", "quality", "style", "user", "background", "moderation", "output_format", "response_format")
    words = ("size", "quality", "style", "background", "output_format", "response_format")
    async with openai_client(edge) as ai:
        await ai.images.generate(
            prompt="x", **dict.fromkeys(optional), extra_body={"seed": None, "num_inference_steps": 1}
        )  # type: ignore[call-overload]
        await ai.images.generate(prompt="x", **{**dict.fromkeys(words, ""), "style": "vivid"})  # type: ignore[call-overload]

    assert len(edge.worker.executed) == 2


@pytest.mark.parametrize("authorization", ["Bearer", "Basic Og==", ""])
async def test_suite_without_tokens_takes_any_authorization(edge: EdgeUnderTest, authorization: str) -> None:
    answer = await edge.http.get("/v1/models", headers={"Authorization": authorization})

    assert answer.status_code == 200


async def test_wrong_host_names_the_setting(edge: EdgeUnderTest) -> None:
    answer = await edge.http.get("/v1/models", headers={"host": "edge.example:50480"})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (403, "WRONG_HOST")
    assert "'edge.example'" in error["message"] and "PENTIMENTO_EDGE_ALLOWED_HOSTS" in error["message"]


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
