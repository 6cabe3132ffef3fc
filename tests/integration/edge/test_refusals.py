"""Test refused calls by field or reason: nothing is generated, and nothing remains."""

import io
import json
from typing import Any

from PIL import Image

from tests.integration.edge.conftest import IN_A_SHARED_LOOP, EdgeUnderTest
from tests.support.images import a_png

GENERATE, EDIT, JOBS = "POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/jobs"
CONSOLE = "POST /console/data/"
JSON, TEXT = {"content-type": "application/json"}, {"content-type": "text/plain"}


def values(**changes: Any) -> dict[str, Any]:
    return {"json": {"prompt": "a red circle", **changes}}


def content(body: bytes, headers: dict[str, str] = JSON) -> dict[str, Any]:
    return {"content": body, "headers": headers}


def form(*files: tuple[str, bytes], **changes: Any) -> dict[str, Any]:
    return {"data": {"prompt": "x", **changes}, "files": list(files)}


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (64, 64)).save(buffer, "JPEG")
    return buffer.getvalue()


IMAGE = ("image", a_png())
A_JSON_BODY = json.dumps({"prompt": "x", "request_id": "r"}).encode()
EVIL = {"origin": "https://evil.example"}
# Method and path, arguments, the status, the field or the reason, words of the message.
Refusal = tuple[str, dict[str, Any], int, str | None, str]
REFUSALS: tuple[Refusal, ...] = (
    (GENERATE, values(prompt=""), 400, "prompt", "at least 1 characters, got 0"),
    (GENERATE, values(prompt=7), 400, "prompt", "must be a string"),
    (GENERATE, values(size="0x64"), 400, "size", "WIDTHxHEIGHT"),
    (GENERATE, values(size="65x64"), 400, "size", "multiple of"),
    (GENERATE, values(num_inference_steps=0), 400, "num_inference_steps", "between 1 and"),
    (GENERATE, values(num_inference_steps=2**70), 400, "num_inference_steps", "at most 9223372036854775807"),
    (GENERATE, values(num_inference_steps=True), 400, "num_inference_steps", "must be an integer"),
    (GENERATE, values(guidance_scale="NaN"), 400, "guidance_scale", "must be a number"),
    (GENERATE, values(guidance_scale=1e308), 400, "guidance_scale", "between"),
    (GENERATE, values(n=0), 400, "n", "at least 1, got 0"),
    (GENERATE, values(seed=-1), 400, "seed", "at least 0, got -1"),
    (GENERATE, values(background="transparent"), 400, "background", "no model here"),
    (GENERATE, values(quality="ultra"), 400, "quality", "must be one of auto"),
    (GENERATE, values(output_compression=99), 400, "output_compression", "must be 100 if output_format is png, got 99"),
    (GENERATE, values(output_format="jpeg", output_compression=101), 400, "output_compression", "at most 100, got 101"),
    (GENERATE, values(output_format="webp", output_compression="9"), 400, "output_compression", "must be an integer"),
    (GENERATE, values(deadline_ms=-5), 400, "deadline_ms", "between 1 and"),
    (GENERATE, values(max_cost=1), 400, "max_cost", "at least the request's cost"),
    (GENERATE, values(user="x" * 257), 400, "user", "at most 256 characters, got 257"),
    (GENERATE, values(cache="OFF"), 400, "cache", "must be one of off"),
    (GENERATE, values(loras=[{"scale": 1}]), 400, "loras[0].name", "is required"),
    (
        GENERATE,
        values(controlnets=[{"name": "x", "conditioning_image": "*"}]),
        400,
        "controlnets[0].conditioning_image",
        "base64",
    ),
    (GENERATE, values(image_url="http://127.0.0.1/"), 400, "image_url", "is not a parameter"),
    (GENERATE, values(model="no-such"), 404, "model", ""),
    (GENERATE, values(model="no-such"), 404, "UNKNOWN_MODEL", ""),
    (GENERATE, values(loras=[{"name": "no-such"}]), 404, "loras[0].name", ""),
    (GENERATE, values(loras=[{"name": "no-such"}]), 404, "UNKNOWN_LORA", ""),
    *[
        (GENERATE, content(body), 400, "body", "")
        for body in (
            b"",
            b"[]",
            b"{",
            b'{"prompt": NaN}',
            b'{"prompt": "\xff"}',
            b"[" * 100_000,
            b'{"seed": ' + b"9" * 5000 + b"}",
        )
    ],
    (GENERATE, content(rb'{"prompt": "\ud800"}'), 400, "prompt", ""),
    (GENERATE, content(b'{"prompt": "x"}', TEXT), 400, "Content-Type", ""),  # any page may send it without a preflight
    (GENERATE, {**values(), "headers": EVIL}, 403, "WRONG_ORIGIN", ""),
    (GENERATE, {**values(), "headers": {"origin": "null"}}, 403, "WRONG_ORIGIN", ""),
    (
        GENERATE,
        {**values(), "headers": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}},
        403,
        "WRONG_ORIGIN",
        "",
    ),
    (GENERATE, {**values(), "headers": {"host": "evil.example"}}, 403, "WRONG_HOST", ""),
    ("GET /v1/models", {"headers": {"host": "edge.example:50480"}}, 403, "WRONG_HOST", "'edge.example'"),
    ("GET /v1/models", {"headers": {"host": "edge.example"}}, 403, "WRONG_HOST", "PENTIMENTO_EDGE_ALLOWED_HOSTS"),
    *[
        (f"GET {path}", {}, 404, "UNKNOWN_PATH", "")
        for path in (
            "/nothing",
            "/v1",
            "/v1/images/generations//",
            "/../etc/passwd",
            "/v1/models/a/b",
            "/console/static/none.js",
            "/console/static/..%2f__init__.py",
            "/console/static/%2e%2e%2fpages.py",
            "/console/static/index.html%00.js",
        )
    ],
    ("PUT /v1/images/generations", {}, 405, "WRONG_METHOD", ""),
    ("PUT /v1/jobs", {}, 405, "WRONG_METHOD", ""),
    *[(f"GET /console/data/{name}", {}, 405, "WRONG_METHOD", "") for name in ("generate", "replay", "explain")],
    (EDIT, form(IMAGE, ("mask", a_png(32))), 400, "mask", "must be of the image's size, 64 x 64, got 32 x 64"),
    (EDIT, form(IMAGE, ("mask", jpeg())), 400, "mask", "must be a PNG image, got JPEG"),
    (EDIT, form(IMAGE, ("mask", b"GIF89a no picture")), 400, "mask", "PNG"),
    (EDIT, form(IMAGE, ("mask", a_png()), ("mask", a_png())), 400, "mask", "must occur once"),
    (EDIT, form(("mask", a_png())), 400, "image", ""),
    (JOBS, values(prompt=""), 400, "prompt", ""),
    (JOBS, values(stream=True), 400, "stream", ""),
    (JOBS, values(webhook="https://a.example"), 400, "webhook", ""),
    (JOBS, values(webhook={"url": 1}), 400, "webhook.url", "must be a string"),
    (JOBS, values(strength=0.5), 400, "strength", "must come with an image"),
    (JOBS, values(webhook={"url": "https://a.example"}), 409, None, ""),
    (JOBS, values(other=1), 400, "other", ""),
    (JOBS, form(IMAGE, prompt=""), 400, "prompt", ""),
    (JOBS, form(IMAGE, stream="true"), 400, "stream", ""),
    (JOBS, form(IMAGE, webhook="https://a.example"), 400, "webhook", ""),
    (JOBS, form(IMAGE, webhook='{"url": []}'), 400, "webhook.url", ""),
    (JOBS, form(IMAGE, webhook='{"url": "\\ud800"}'), 400, "webhook.url", ""),
    (JOBS, form(IMAGE, webhook='{"url": "https://a.example"}'), 409, None, ""),
    (JOBS, form(IMAGE, other="1"), 400, "other", ""),
    (JOBS, content(A_JSON_BODY, TEXT), 400, "Content-Type", ""),
    *[
        (f"GET /v1/jobs?{query}", {}, 400, param, "")
        for query, param in (
            ("limit=0", "limit"),
            ("limit=x", "limit"),
            ("limit=201", "limit"),
            ("limit=1&limit=2", "limit"),
            ("status=gone", "status"),
            ("after=nonsense", "after"),
            ("jobs_only=1", "jobs_only"),
            ("other=1", "other"),
        )
    ],
    *[
        (f"GET /v1/jobs/r-unknown/result?{query}", {}, 400, param, "")
        for query, param in (
            ("response_format=png", "response_format"),
            ("response_format=url&response_format=url", "response_format"),
            ("provenance=1", "provenance"),
            ("other=1", "other"),
        )
    ],
    *[
        (call, {}, 404, named, "")
        for call in (
            "GET /v1/jobs/r-unknown",
            "GET /v1/jobs/r-unknown/result",
            "GET /v1/jobs/r-unknown/events",
            "POST /v1/jobs/r-unknown/cancel",
            "POST /v1/jobs/r-unknown/url",
        )
        for named in ("UNKNOWN_REQUEST", "request_id")
    ],
    (CONSOLE + "generate", {"json": {}}, 400, "prompt", ""),
    (CONSOLE + "generate", values(preview_every_steps=-1), 400, "preview_every_steps", ""),
    (CONSOLE + "generate", values(image="*"), 400, "image", ""),
    (CONSOLE + "generate", values(neighbour_count=1), 400, "neighbour_count", ""),
    (CONSOLE + "generate", values(n=11), 400, "n", ""),
    (CONSOLE + "generate", values(mask=""), 400, "mask", ""),
    *[
        (CONSOLE + "generate", values(seed=seed), 400, "seed", "")
        for seed in ("", "x", "-1", "1.0", str(2**64), "9" * 21)
    ],
    (CONSOLE + "explain", values(n=2), 400, "n", ""),
    (CONSOLE + "explain", values(neighbour_count=51), 400, "neighbour_count", ""),
    (CONSOLE + "replay", {"json": {}}, 400, "request_id", ""),
    (
        CONSOLE + "replay",
        {"json": {"request_id": "r", "inputs": [{"field": "init_image.image", "data": "*"}]}},
        400,
        "inputs[0].data",
        "",
    ),
    *[
        (CONSOLE + name, {"json": {}, "headers": EVIL}, 403, "WRONG_ORIGIN", "")
        for name in ("generate", "replay", "explain")
    ],
    *[
        (CONSOLE + name, content(A_JSON_BODY, TEXT), 400, "Content-Type", "")
        for name in ("generate", "replay", "explain")
    ],
)


@IN_A_SHARED_LOOP
async def test_wrong_calls_are_refused_by_name(shared_edge: EdgeUnderTest) -> None:
    faults = []
    for call, sent, status, named, words in REFUSALS:
        method, path = call.split(" ")
        answer = await shared_edge.http.request(method, path, **sent)

        error = answer.json()["error"]
        found = (answer.status_code, named in (error["param"], error["code"]), words in error["message"])
        if found != (status, True, True) or (status == 400 and error["type"] != "invalid_request_error"):
            faults.append((call, str(sent)[:100], answer.status_code, error))
        # The contract has another name for `after`, and no other page may read an answer.
        if "page_token" in answer.text or {"access-control-allow-origin", "set-cookie"} & answer.headers.keys():
            faults.append((call, str(sent)[:100], dict(answer.headers), answer.text[:200]))

    assert not faults
    assert shared_edge.worker.executed == []
    assert (await shared_edge.http.get("/v1/jobs")).json()["data"] == []


@IN_A_SHARED_LOOP
async def test_wrong_method_lists_allowed_ones(shared_edge: EdgeUnderTest) -> None:
    allowed = {
        path: set((await shared_edge.http.put(path)).headers["allow"].split(", "))
        for path in ("/v1/images/generations", "/v1/jobs")
    }

    assert allowed == {"/v1/images/generations": {"POST"}, "/v1/jobs": {"GET", "HEAD", "POST"}}
