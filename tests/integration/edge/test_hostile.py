"""Test hostile calls: each is refused or harmless, and the same process generates an image afterwards."""

import asyncio
import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from lab.fixtures.paced_worker import image_of
from pentimento.images.png import png_chunk, png_file
from tests.integration.edge.conftest import EdgeUnderTest, routes_of
from tests.integration.edge.sockets import (
    FORM_HEAD,
    GOOD,
    JSON_HEAD,
    answer_to,
    assert_generates,
    connection,
    ended_while_sending,
    limited,
    with_body,
)
from tests.integration.frontdoor.inputs import png


@limited(header_timeout_s=0.3)
async def test_a_head_that_trickles_ends_the_connection(edge: EdgeUnderTest) -> None:
    await ended_while_sending(edge, b"GET /health HTTP/1.1\r\n", b"X-A: a\r\n", 408)


async def test_two_names_of_a_host_are_refused(edge: EdgeUnderTest) -> None:
    head = JSON_HEAD + b"Host: evil.example\r\nConnection: close\r\n"

    answer = await answer_to(edge, with_body(GOOD, head))

    assert answer.startswith(b"HTTP/1.1 400 ") and b'"param":"Host"' in answer
    assert edge.worker.executed == []
    await assert_generates(edge)


def form(name: str, data: bytes, *headers: bytes) -> bytes:
    """Return a form with one file and a prompt."""
    lines = [b'Content-Disposition: form-data; name="%s"; filename="a"' % name.encode(), *headers]
    file = b"--b\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + data
    return file + b'\r\n--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--b--\r\n'


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of that size in its header, with pixels that compress to almost nothing."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    header = png_chunk(b"IHDR", size + bytes([8, 6, 0, 0, 0]))
    return png_file(header, png_chunk(b"IDAT", zlib.compress(bytes(1 << 20))))


NESTED = b'--i\r\nContent-Disposition: form-data; name="image"\r\n\r\n' + png() + b"\r\n--i--\r\n"
BAD_FORMS: tuple[tuple[bytes, bytes, str], ...] = (
    (form("image", NESTED, b"Content-Type: multipart/mixed; boundary=i"), FORM_HEAD, "image"),
    (form("image", base64.b64encode(png()), b"Content-Transfer-Encoding: base64"), FORM_HEAD, "image"),
    (form("image", gzip.compress(png()), b"Content-Encoding: gzip"), FORM_HEAD, "image"),
    (form("image", bomb(60_000, 60_000)), FORM_HEAD, "image"),
    (form("image[][]", png()), FORM_HEAD, "image"),
    (form("image", png()), FORM_HEAD.replace(b"=b", b"=" + b"b" * 71), "Content-Type"),
    (form("image", png()), FORM_HEAD.replace(b"form-data", b"mixed"), "Content-Type"),
    (form("image", png()), FORM_HEAD + b"Content-Encoding: gzip\r\n", "Content-Encoding"),
)


async def test_a_form_that_hides_something_is_refused_by_name(edge: EdgeUnderTest) -> None:
    for body, head, param in BAD_FORMS:
        answer = await answer_to(edge, with_body(body, head + b"Connection: close\r\n"))

        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (answer[:13], error["param"]) == (b"HTTP/1.1 400 ", param), body[:150]
        assert edge.worker.executed == []
        await assert_generates(edge)
        edge.worker.executed.clear()


NO_PICTURES = (bomb(60_000, 60_000), bomb(2**31 - 1, 1), b"http://127.0.0.1:1/picture.png", b"", bytes(64))


async def test_file_that_is_no_image_is_refused_by_field(edge: EdgeUnderTest) -> None:
    """The header decides: nothing is decompressed or fetched."""
    for data in NO_PICTURES:
        text = base64.b64encode(data).decode()
        files = {"image": png(), "mask": data}
        answers = [
            await edge.http.post("/v1/images/edits", data={"prompt": "x"}, files=files),
            await edge.http.post("/console/data/generate", json={"prompt": "x", "image": text}),
            await edge.http.post("/console/data/explain", json={"prompt": "x", "image": text}),
        ]

        told = [(answer.status_code, answer.json()["error"]["param"]) for answer in answers]
        assert [status for status, _ in told] == [400] * 3, told
        assert {param for _, param in told} <= {"image", "mask"}, told
        assert edge.worker.executed == []
        await assert_generates(edge)
        edge.worker.executed.clear()


@pytest.mark.slow
@limited(max_body_bytes=65536)
async def test_a_part_that_never_ends_is_cut_off_at_the_bound_of_a_body(edge: EdgeUnderTest) -> None:
    head = FORM_HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    begin = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    chunks = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"

    answer = await answer_to(edge, head, b"%x\r\n%s\r\n" % (len(begin), begin), chunks * 8)

    assert answer.startswith(b"HTTP/1.1 413 ") and b"MESSAGE_TOO_LARGE" in answer
    await assert_generates(edge)


async def test_a_compressed_body_is_refused_and_never_unpacked(edge: EdgeUnderTest) -> None:
    packed = gzip.compress(b'{"prompt": "' + b"x" * (8 << 20) + b'"}')
    for path in ("/v1/images/generations", "/v1/jobs", "/console/data/generate"):
        for encoding in ("gzip", "br", "deflate, gzip"):
            headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
            answer = await edge.http.post(path, content=packed, headers=headers)

            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Encoding"), path
    assert edge.worker.executed == []
    await assert_generates(edge)


CHUNKED = JSON_HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n" % (len(GOOD), GOOD)


async def test_trailers_change_no_header(edge: EdgeUnderTest) -> None:
    """A proxy may check heads and pass trailers through."""
    for trailer in (
        b"Host: evil.example",
        b"Origin: https://evil.example",
        b"Authorization: none",
        b"Idempotency-Key:",
    ):
        answer = await answer_to(edge, CHUNKED + CHUNKS + trailer + b"\r\n\r\n")

        assert answer.startswith(b"HTTP/1.1 200 "), trailer


@pytest.mark.parametrize("line", [b"X-A: a\r\n", b"a"], ids=["many", "long"])
async def test_trailers_that_do_not_end_are_refused_as_a_head_is(edge: EdgeUnderTest, line: bytes) -> None:
    await ended_while_sending(edge, CHUNKED + CHUNKS, line * 1000, 431)


async def test_a_body_in_many_small_chunks_is_taken(edge: EdgeUnderTest) -> None:
    text = json.dumps({"prompt": "x" * 5000, "num_inference_steps": 1}).encode()
    async with connection(edge) as (reader, writer):
        writer.write(CHUNKED)
        for start in range(0, len(text), 100):
            writer.write(b"".join(b"1;of=one\r\n%c\r\n" % one for one in text[start : start + 100]))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\nX-Sum: 1\r\n\r\n")
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 200 ")


OFFERS = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n",
)


@pytest.mark.parametrize("offer", OFFERS, ids=["h2c", "websocket"])
async def test_upgrade_offer_leaves_one_request_with_its_body(edge: EdgeUnderTest, offer: bytes) -> None:
    """Java's client makes this offer in its first request; proxies may pass it through."""
    body = json.dumps({"prompt": "POST /v1/jobs HTTP/1.1\r\n\r\n", "num_inference_steps": 1}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:20], body[20:])) + b"0\r\n\r\n"
    head, last = JSON_HEAD + offer, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    asks = [
        with_body(body, head),
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + offer + b"Content-Length: 0\r\n\r\n",
    ]
    for sent in (b"".join(asks) + last, *(ask + last for ask in asks)):
        for at_once in (1, 50, len(sent)):
            received = b""
            async with connection(edge) as (reader, writer):
                for start in range(0, len(sent), at_once):
                    writer.write(sent[start : start + at_once])
                    await writer.drain()
                    await asyncio.sleep(0)
                received = await reader.read()

            statuses = [line for line in received.split(b"\r\n") if b"HTTP/1.1 " in line]
            assert len(statuses) == sent.count(b"Host: "), (at_once, received)
            assert all(line.endswith(b"HTTP/1.1 200 OK") for line in statuses), (at_once, received)
    assert (await edge.http.get("/v1/jobs")).json()["data"] == []


async def test_a_body_that_is_compressed_on_its_way_is_refused(edge: EdgeUnderTest) -> None:
    for coding in (b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked"):
        head = CHUNKED.replace(b"chunked", coding)

        answer = await answer_to(edge, head + CHUNKS + b"\r\n")

        assert answer.startswith(b"HTTP/1.1 400 ") and b'"param":"Transfer-Encoding"' in answer, coding
    assert edge.worker.executed == []


async def test_no_route_answers_a_page_of_another_origin(edge: EdgeUnderTest, folder: Path) -> None:
    routes = sorted(routes_of(folder, console=True) - {("GET", "/v1/files/{key:path}")})
    foreign = ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"})

    for method, path in [*routes, ("OPTIONS", "/v1/jobs"), ("OPTIONS", "/console/data/generate")]:
        for headers in foreign:
            answer = await edge.http.request(method, path, headers=headers)

            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "WRONG_ORIGIN"), (method, path)
            assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert len(routes) > 20
    await assert_generates(edge)


@pytest.mark.parametrize("closes", [False, True], ids=["leaves pipelined requests", "closes its half"])
async def test_client_that_leaves_connection_frees_worker(edge: EdgeUnderTest, closes: bool) -> None:
    edge.worker.hold.clear()
    async with connection(edge) as (_, writer), asyncio.timeout(60.0):
        writer.write(with_body(GOOD) * (1 if closes else 2))
        await edge.worker.wait_until(lambda: edge.worker.running)
        if closes:
            writer.write_eof()
            await edge.worker.wait_until(lambda: not edge.worker.running)
    async with asyncio.timeout(60.0):
        await edge.worker.wait_until(lambda: not edge.worker.running)

    edge.worker.hold.set()
    await assert_generates(edge)


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/images/edits", "/console/data/generate"])
async def test_a_reader_of_events_that_leaves_frees_the_worker(edge: EdgeUnderTest, path: str) -> None:
    edge.worker.hold.clear()
    asked: dict[str, Any] = {"json": {"prompt": "x", **({} if path.startswith("/console") else {"stream": True})}}
    if path.endswith("edits"):
        asked = {"data": {"prompt": "x", "stream": "true"}, "files": {"image": png()}}

    async with asyncio.timeout(60), edge.http.stream("POST", path, **asked) as answer:
        assert answer.status_code == 200
        await edge.worker.wait_until(lambda: edge.worker.running)
    async with asyncio.timeout(60):
        await edge.worker.wait_until(lambda: not edge.worker.running)

    edge.worker.hold.set()
    await assert_generates(edge)


async def test_an_answer_is_never_another_s_after_many_have_left(edge: EdgeUnderTest) -> None:
    edge.worker.credit_count = 8

    async def asked(number: int) -> tuple[str, bytes] | None:
        prompt = f"nonce {number}"
        asking = asyncio.ensure_future(edge.generate(prompt=prompt, num_inference_steps=2, seed=number))
        if number % 2:
            for _ in range(number):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            return None
        return prompt, base64.b64decode((await asking).json()["data"][0]["b64_json"])

    answers = [one for one in await asyncio.gather(*map(asked, range(60))) if one is not None]

    generated = {spec.prompt: image_of(spec) for spec in edge.worker.executed}
    assert len({image for _, image in answers}) == 30
    assert all(generated[prompt] == image for prompt, image in answers)
