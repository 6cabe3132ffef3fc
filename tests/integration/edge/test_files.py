"""Test `/v1/files/…`: only a signed address gives the image."""

import asyncio
import base64
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker, image_of
from pentimento.files.ed25519_keys import new_signing_key, read_signing_keys
from pentimento.rpc import watched_file
from pentimento.stores.objects import open_objects
from pentimento.stores.objects.store import PathSigner, SignedFile
from tests.integration.frontdoor.inputs import store_away

AT_ONCE = 2

ASKED = {"prompt": "a red circle", "num_inference_steps": 3, "seed": 1}


@dataclass(frozen=True)
class FilesUnderTest:
    """Hold an edge that serves files, a finished image, and its URL."""

    http: httpx.AsyncClient
    folder: Path
    picture: bytes
    url: str


@pytest.fixture
async def files(folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FilesUnderTest]:
    from lab.fixtures.edge_suite import running_edge

    monkeypatch.setattr("services.edge.files.AT_ONCE", AT_ONCE)
    keys, objects = folder / "keys", f"file://{folder / 'objects'}"
    keys.write_text(new_signing_key())
    async with (
        running_suite(folder, signing_key_file=keys) as suite,
        running_edge(folder, f"unix:{folder / 'f'}", files_url=(objects,), signing_key_file=keys) as running,
        httpx.AsyncClient(base_url=f"http://{running.listener.address}", timeout=60) as http,
    ):
        completed = await suite.paint()
        answer = await http.post(f"/v1/jobs/{completed.request_id}/url")
        url = answer.json()["url"].removeprefix(str(http.base_url))
        yield FilesUnderTest(http, folder, image_of(completed.provenance.spec), "/" + url.lstrip("/"))


async def test_signed_address_serves_image_without_token(files: FilesUnderTest) -> None:
    answer = await files.http.get(files.url, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})

    assert (answer.status_code, answer.content) == (200, files.picture)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-length"] == str(len(files.picture))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers.get_list("cross-origin-resource-policy") == ["cross-origin"]
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["cache-control"].startswith("private, max-age=3")


async def test_conditional_get_is_answered_without_image(files: FilesUnderTest) -> None:
    etag = (await files.http.get(files.url)).headers["etag"]
    for conditions in ([etag], ["*"], ['"0"', etag]):
        again = await files.http.get(files.url, headers=[("If-None-Match", one) for one in conditions])
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    other = await files.http.get(files.url, headers={"If-None-Match": '"0"', "Range": "bytes=0-1"})
    assert (other.status_code, other.content) == (200, files.picture)


async def test_stored_file_changed_or_gone_is_not_sent(files: FilesUnderTest) -> None:
    store = open_objects(f"file://{files.folder / 'objects'}")
    (key,) = store.keys("results/")
    store.put(key, b"x" * len(files.picture))
    changed = await files.http.get(files.url)
    store.delete(key)
    gone = [await files.http.get(files.url, headers=headers) for headers in ({}, {"If-None-Match": "*"})]

    assert changed.status_code >= 500
    assert b"xxx" not in changed.content
    assert [(one.status_code, one.json()["error"]["code"]) for one in gone] == [(404, "RESULT_GONE")] * 2


async def test_every_wrong_address_gets_the_same_refusal(files: FilesUnderTest) -> None:
    signer = PathSigner(*read_signing_keys(files.folder / "keys"))
    key, _, query = files.url.removeprefix("/v1/files/").partition("?")
    reference = signer.verify(key, query, 0.0).reference
    expired = open_objects(f"file://{files.folder / 'objects'}", lambda: signer).presign(reference, "image/png", 1)
    wrong = [
        files.url[:-1],
        files.url + "x",
        files.url.replace("image%2Fpng", "text%2Fhtml"),
        files.url.replace("results/", "inputs/"),
        files.url.replace("/v1/files/results/", "/v1/files/..%2Fresults/"),
        files.url.replace("/v1/files/", "/v1/files//"),
        files.url.partition("?")[0],
        expired,
        PathSigner(b"x" * 32).sign(signer.verify(key, query, 0.0)),
    ]
    answers = [await files.http.get(url) for url in wrong]

    assert {answer.status_code for answer in answers} == {403}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["error"]["code"] == "URL_REFUSED"


async def test_changed_signing_keys_apply_without_restart(
    files: FilesUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "CHECK_INTERVAL_S", 0.0)
    keys, old, new = files.folder / "keys", (files.folder / "keys").read_text(), new_signing_key()
    key, _, query = files.url.removeprefix("/v1/files/").partition("?")
    url = PathSigner(bytes.fromhex(new)).sign(PathSigner(bytes.fromhex(old)).verify(key, query, 0.0))

    async def answered() -> tuple[int, int]:
        return (await files.http.get(files.url)).status_code, (await files.http.get(url)).status_code

    before = await answered()
    keys.write_text(f"{new}\n{old}\n")
    both = await answered()
    keys.write_text("")
    emptied = await answered()
    keys.write_text(new)

    assert (before, both, emptied, await answered()) == ((200, 403), (200, 200), (200, 200), (403, 200))


async def once_available(http: httpx.AsyncClient, path: str) -> httpx.Response:
    while True:
        answer = await http.get(path)
        if answer.status_code != 503:
            return answer
        await asyncio.sleep(0.01)


async def test_image_of_absent_store_is_found_by_key_or_by_refusals_address(
    files: FilesUnderTest, worker: PacedWorker
) -> None:
    """Without a key another call would generate the image again, so unmodified clients must not retry."""
    asked = {"json": {**ASKED, "response_format": "url"}}
    with store_away(files.folder):
        keyed = await files.http.post("/v1/images/generations", **asked, headers={"Idempotency-Key": "k"})
        keyless = await files.http.post("/v1/images/generations", **asked)
    kept = f"/v1/jobs/{keyless.headers['x-request-id']}/result"
    told = await once_available(files.http, f"{kept}?response_format=url")
    retried = await files.http.post("/v1/images/generations", **asked, headers={"Idempotency-Key": "k"})

    assert (keyed.status_code, keyed.headers["retry-after"]) == (503, "1")
    assert (keyless.status_code, keyless.headers["x-should-retry"]) == (409, "false")
    assert kept in keyless.json()["error"]["message"]
    assert retried.headers["x-request-id"] == keyed.headers["x-request-id"]
    assert [(await files.http.get(one.json()["data"][0]["url"])).status_code for one in (told, retried)] == [200, 200]
    assert len(worker.executed) == 3


async def test_stalled_reader_does_not_block_others(
    files: FilesUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next reader gets its place, and nothing is logged."""
    monkeypatch.setattr("services.edge.files.GRACE_S", 0.0)
    monkeypatch.setattr("services.edge.files.LEAST_READ_BYTES_PER_S", 2**30)
    large = b"x" * 2**24  # more than sockets take by themselves
    signer = PathSigner(*read_signing_keys(files.folder / "keys"))
    reference = open_objects(f"file://{files.folder / 'objects'}").put("results/large", large)
    path = signer.sign(SignedFile(reference, "image/png", 2**33))
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()
    # Collect tasks and connections of earlier tests now: their warnings would appear in this test's log.
    gc.collect()
    caplog.clear()
    opened = [await asyncio.open_connection(files.http.base_url.host, files.http.base_url.port) for _ in range(AT_ONCE)]
    for reader, writer in opened:
        writer.write(head)
        await reader.readuntil(b"\r\n\r\n")

    answer = await files.http.get(files.url)

    for _, writer in opened:
        writer.transport.abort()
    assert (answer.status_code, answer.content) == (200, files.picture)
    ours = ("asyncio", "uvicorn", "services.edge")
    assert [record for record in caplog.records if record.name.startswith(ours)] == []


@pytest.mark.parametrize("keyed", [False, True], ids=["frontdoor", "edge"])
async def test_url_request_without_addresses_generates_no_image(folder: Path, worker: PacedWorker, keyed: bool) -> None:
    """The frontdoor has no key to sign with, or the edge has no files to serve."""
    from lab.fixtures.edge_suite import running_edge

    keys = folder / "keys"
    keys.write_text(new_signing_key())
    async with (
        running_suite(folder, signing_key_file=keys if keyed else None) as suite,
        running_edge(folder, f"unix:{folder / 'f'}") as running,
        httpx.AsyncClient(base_url=f"http://{running.listener.address}", timeout=60) as http,
    ):
        generated = await suite.paint()
        asked = {**ASKED, "response_format": "url"}
        form = {name: str(value) for name, value in asked.items()}
        refused = [
            await http.post("/v1/images/generations", json=asked),
            await http.post("/v1/images/edits", data=form, files={"image": generated.image}),
            await http.post("/v1/jobs", json=asked),
            await http.get(f"/v1/jobs/{generated.request_id}/result", params={"response_format": "url"}),
            await http.post(f"/v1/jobs/{generated.request_id}/url"),
        ]
        status = await suite.operator.status()

    errors = [answer.json()["error"] for answer in refused]
    assert {answer.status_code for answer in refused} == {409}
    assert {(error["code"], error["param"]) for error in errors} == {("URLS_OFF", "response_format")}
    assert status.accepted_count == 1


async def test_images_and_jobs_return_addresses_on_request(files: FilesUnderTest) -> None:
    asked = {**ASKED, "response_format": "url"}
    answer = await files.http.post("/v1/images/generations", json=asked)
    streamed = await files.http.post("/v1/images/generations", json={**asked, "stream": True})
    (image,) = answer.json()["data"]
    assert "b64_json" not in image and image["url"].startswith(str(files.http.base_url))
    assert (await files.http.get(image["url"])).content == files.picture
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "response_format")

    submitted = (await files.http.post("/v1/jobs", json={**asked, "n": 2, "provenance": True})).json()
    await files.http.get(f"/v1/jobs/{submitted['id']}/events")
    images = (await files.http.get(submitted["result"])).json()["data"]
    read = [await files.http.get(one["url"]) for one in images]
    assert submitted["result"] == f"/v1/jobs/{submitted['id']}/result?response_format=url&provenance=true"
    assert [one["provenance"]["spec"]["seed"] for one in images] == [1, 2]
    assert read[0].content == files.picture != read[1].content
    assert "b64_json" not in images[0]

    plain = (await files.http.post("/v1/jobs", json=ASKED)).json()
    await files.http.get(f"/v1/jobs/{plain['id']}/events")
    (image,) = (await files.http.get(plain["result"])).json()["data"]
    assert plain["result"] == f"/v1/jobs/{plain['id']}/result"
    assert base64.b64decode(image["b64_json"]) == files.picture
    assert not {"url", "provenance"} & set(image)
