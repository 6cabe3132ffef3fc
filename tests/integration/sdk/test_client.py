"""Test the public client against a real server that plays a script."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.domain.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.image_request import Accepted, ImageFailed, ImageRequest
from pentimento.sdk import AsyncClient, ImageSet, RetryPolicy
from pentimento.wire.codec import encode
from tests.integration.sdk.scripted import (
    ACCEPTED,
    COMPLETED,
    PROVENANCE,
    QUICK,
    REPLAYED,
    TWO,
    Script,
    ScriptedImageService,
    completed,
    for_ever,
    plays,
    serving,
)


class AttachedTo(ScriptedImageService):
    """Play the next script at each call of Attach."""

    async def Attach(self, request: pb.AttachRequest, context: object) -> AsyncIterator[pb.GenerateResponse]:
        async for event in self.scripts.pop(0)():
            yield event


async def image_from(address: str, key: str = "") -> bytes:
    async with AsyncClient(address, retries=QUICK) as client:
        return (await client.generate(ImageRequest("a circle"), idempotency_key=key)).data


DOWN = Unavailable("DOWN", "down")
LEFT = Cancelled("CLIENT_LEFT", "cancelled by the client")
SECOND = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-2"))


@pytest.mark.parametrize(
    ("scripts", "keys", "accepted"),
    [
        pytest.param([plays(then=DOWN), plays(REPLAYED, COMPLETED)], "aa", "1", id="unavailable"),
        pytest.param([plays(COMPLETED, then=DOWN)], "a", "", id="ends badly after its image"),
        pytest.param([plays(ACCEPTED, then=DOWN), plays(REPLAYED, COMPLETED)], "aa", "1", id="stream breaks"),
        pytest.param(
            [plays(ACCEPTED, then=DOWN), plays(then=LEFT), plays(SECOND, COMPLETED)],
            "aab",
            "12",
            id="broken connection taken for a cancel",
        ),
        pytest.param(
            [plays(ACCEPTED, then=DOWN), *[plays(then=DOWN)] * QUICK.tries, plays(REPLAYED, COMPLETED)],
            "aaaaa",
            "1",
            id="its server takes longer to start again",
        ),
    ],
)
async def test_broken_call_is_made_again_under_its_key(
    tmp_path: Path, scripts: list[Script], keys: str, accepted: str
) -> None:
    """`keys`: letters for equal keys. `accepted`: the last characters of the ids that the caller receives."""
    service = ScriptedImageService(scripts * 2)

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        image = await client.generate(ImageRequest("a circle"))
        events = [event async for event in client.stream(ImageRequest("a circle"))]

    assert image.data == b"image"
    for own in (service.keys[: len(keys)], service.keys[len(keys) :]):
        letters = {key: "ab"[number] for number, key in enumerate(dict.fromkeys(own))}
        assert "".join(letters[key] for key in own) == keys and "" not in own
    assert "".join(event.request_id[-1] for event in events if isinstance(event, Accepted)) == accepted


@pytest.mark.parametrize(
    ("scripts", "key", "error", "calls"),
    [
        ([plays(then=DOWN)] * 5, "", DOWN, QUICK.tries),
        ([plays(then=InvalidArgument.of("prompt", "must not be empty"))], "", InvalidArgument.of("prompt", ""), 1),
        (
            [plays(then=ResourceExhausted("QUEUE_FULL", "full", retry_after_ms=700))],
            "",
            ResourceExhausted("QUEUE_FULL", "full", retry_after_ms=700),
            1,
        ),
        ([plays(ACCEPTED, then=DOWN), plays(then=LEFT)], "order-7", LEFT, 2),
        ([plays(ACCEPTED, then=DOWN), plays(then=Cancelled("CANCELLED", "x"))], "", Cancelled("CANCELLED", ""), 2),
    ],
    ids=["retries end", "wrong field", "no room", "client left under the caller's key", "cancelled"],
)
async def test_error_that_a_retry_cannot_cure_is_raised(
    tmp_path: Path, scripts: list[Script], key: str, error: PentimentoError, calls: int
) -> None:
    service = ScriptedImageService(list(scripts))

    async with serving(service, tmp_path) as address:
        with pytest.raises(type(error)) as caught:
            await image_from(address, key=key)

    assert (caught.value.reason, caught.value.retry_after_ms) == (error.reason, error.retry_after_ms)
    assert [one.field for one in caught.value.violations] == [one.field for one in error.violations]
    assert len(service.keys) == calls
    assert not key or set(service.keys) == {key}


async def test_stream_of_image_is_read_to_its_end(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def script() -> AsyncIterator[pb.GenerateResponse]:
        yield COMPLETED
        await asyncio.sleep(0.05)
        ended.set()

    service = ScriptedImageService([script])
    async with serving(service, tmp_path) as address:
        await image_from(address)

    assert ended.is_set()
    assert not service.cancelled.is_set()


async def test_retry_gets_the_remaining_deadline(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[pb.GenerateResponse]:
        yield ACCEPTED
        await asyncio.sleep(0.05)
        raise Unavailable("DOWN", "down")

    cancelled = plays(then=Cancelled("CLIENT_LEFT", "cancelled by the client"))
    service = ScriptedImageService([slow, cancelled, slow, plays(ACCEPTED, COMPLETED)])

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        await client.generate(ImageRequest("a circle", deadline_ms=60_000))

    first, again, anew, anew_again = service.deadlines_ms
    assert first == again == 60_000
    assert anew == anew_again <= 60_000 - 50


async def test_unaccepted_request_is_not_retried_after_its_deadline(tmp_path: Path) -> None:
    """The server would give it all of the deadline once more."""
    pauses = RetryPolicy(tries=9, first_pause_s=0.05, max_pause_s=0.05)
    service = ScriptedImageService([plays(then=Unavailable("DOWN", "down")) for _ in range(9)])

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=pauses) as client:
        with pytest.raises(Unavailable):
            await client.generate(ImageRequest("a circle", deadline_ms=20))

    assert len(service.keys) <= 2


@pytest.mark.parametrize(
    ("policy", "then", "tries"),
    [
        # An accepted request is waited for longer than a call takes to fail, but not for ever.
        (RetryPolicy(tries=2, first_pause_s=0.001, max_pause_s=0.001, accepted_tries=4), DOWN, 4),
        # It has ended, or may never be tried again.
        (RetryPolicy(tries=3, first_pause_s=0.01, max_pause_s=0.02), Unavailable("WORKER_LOST", "lost"), 1),
        (RetryPolicy(tries=1, first_pause_s=0.01, max_pause_s=0.02), DOWN, 1),
    ],
)
async def test_wait_for_accepted_request_ends(
    tmp_path: Path, policy: RetryPolicy, then: PentimentoError, tries: int
) -> None:
    service = AttachedTo([plays(REPLAYED, then=then) for _ in range(9)])

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=policy) as client:
        with pytest.raises(Unavailable):
            await client.wait("request-1")

    assert len(service.scripts) == 9 - tries


async def test_wait_for_accepted_request_outlasts_tries_of_a_call(tmp_path: Path) -> None:
    service = AttachedTo([*[plays(then=DOWN)] * QUICK.tries, plays(REPLAYED, COMPLETED)])

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        assert (await client.wait("request-1")).data == b"image"


def failed(index: int) -> pb.GenerateResponse:
    return encode(ImageFailed(f"p2-x-{index}", index, Internal("BROKEN", "the decoder broke")), pb.GenerateResponse)


async def generated(tmp_path: Path, service: ScriptedImageService, key: str = "") -> ImageSet:
    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        return await client.generate_all(ImageRequest("a circle", image_count=2), idempotency_key=key)


async def test_images_are_in_the_order_of_their_indexes(tmp_path: Path) -> None:
    found = await generated(tmp_path, ScriptedImageService([plays(TWO, completed(1), completed(0))]))

    assert (found.request_id, [image.data for image in found.images]) == ("p2-x", [b"image 0", b"image 1"])
    assert found.raise_failure() is found


async def test_failed_image_does_not_hide_the_other(tmp_path: Path) -> None:
    found = await generated(tmp_path, ScriptedImageService([plays(TWO, failed(0), completed(1))]))

    assert [image.data for image in found.images] == [b"image 1"]
    assert [(one.image_index, one.error.reason) for one in found.failures] == [(0, "BROKEN")]
    with pytest.raises(Internal, match="the decoder broke"):
        found.raise_failure()


async def test_retry_returns_each_image_once_and_progress_of_missing_ones(tmp_path: Path) -> None:
    def progress(index: int) -> pb.GenerateResponse:
        return pb.GenerateResponse(progress=pb.Progress(step=1, step_count=2, image_index=index))

    first = plays(TWO, progress(0), completed(0), then=Unavailable("DOWN", "down"))
    second = plays(TWO, progress(0), completed(0), progress(1), completed(1))
    service = ScriptedImageService([first, second])

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        events = [event async for event in client.stream(ImageRequest("a circle", image_count=2))]

    told = [(type(event).__name__, getattr(event, "image_index", None)) for event in events]
    assert told == [
        ("Accepted", None),
        ("Progress", 0),
        ("Completed", 0),
        ("Progress", 1),
        ("Completed", 1),
    ]
    assert len(set(service.keys)) == 1


def left(index: int) -> pb.GenerateResponse:
    return encode(ImageFailed(f"p2-x-{index}", index, LEFT), pb.GenerateResponse)


ANEW = pb.GenerateResponse(accepted=pb.Accepted(request_id="p2-y", image_request_ids=["p2-y-0", "p2-y-1"]))


@pytest.mark.parametrize(
    "second",
    [
        plays(TWO, left(0), left(1), then=LEFT),
        plays(TWO, completed(0), left(1)),
    ],
    ids=["all", "one"],
)
async def test_images_of_a_broken_connection_are_generated_again(tmp_path: Path, second: Script) -> None:
    scripts = [plays(TWO, then=DOWN), second, plays(ANEW, completed(0), completed(1))]
    service = ScriptedImageService(scripts)

    found = await generated(tmp_path, service)

    assert ([image.data for image in found.images], found.failures) == ([b"image 0", b"image 1"], ())
    assert service.keys[0] == service.keys[1] != service.keys[2]


async def test_images_under_the_callers_key_report_a_broken_connection(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(TWO, completed(0), then=DOWN), plays(TWO, completed(0), left(1))])

    found = await generated(tmp_path, service, "order-7")

    assert [(one.image_index, one.error.reason) for one in found.failures] == [(1, "CLIENT_LEFT")]
    assert service.keys == ["order-7", "order-7"]


async def test_generate_refuses_several_images(tmp_path: Path) -> None:
    async with AsyncClient(f"unix:{tmp_path}/nobody") as client:
        with pytest.raises(InvalidArgument, match="image_count: must be 1, got 2: generate_all has several"):
            await client.generate(ImageRequest("a circle", image_count=2))


@dataclass
class AwayAtFirst(ScriptedImageService):
    """Fail the first unary call, and answer later ones."""

    calls: list[str] = field(default_factory=list)

    def answering(self, rpc: str, answer: object) -> "AwayAtFirst":
        async def call(request: object, context: object) -> object:
            self.calls.append(rpc)
            if len(self.calls) == 1:
                raise Unavailable("DOWN", "down")
            return answer

        setattr(self, rpc, call)
        return self


CANCELLED = pb.REQUEST_STATE_CANCELLED
ASKED: tuple[tuple[str, object, Callable[[AsyncClient], Awaitable[object]]], ...] = (
    ("Cancel", pb.CancelResponse(state=CANCELLED), lambda client: client.cancel("r")),
    ("GetRequest", pb.GetRequestResponse(state=CANCELLED), lambda client: client.get_request("r")),
    ("Pin", pb.PinResponse(request_id="r"), lambda client: client.pin("r", 1000)),
    ("Unpin", pb.UnpinResponse(), lambda client: client.unpin("r")),
    ("ListModels", pb.ListModelsResponse(), lambda client: client.list_models()),
    ("ListModels", pb.ListModelsResponse(), lambda client: client.list_adapters()),
    ("ListRequests", pb.ListRequestsResponse(), lambda client: client.list_requests()),
    (
        "Explain",
        pb.ExplainResponse(route=encode(PROVENANCE.route, generation_pb2.Route)),
        lambda client: client.explain(ImageRequest("a circle")),
    ),
)


async def test_queries_are_retried_if_server_did_not_answer(tmp_path: Path) -> None:
    for rpc, answer, ask in ASKED:
        service = AwayAtFirst([]).answering(rpc, answer)
        async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
            await ask(client)

        assert service.calls == [rpc, rpc]


async def test_missing_server_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        await image_from(f"unix:{tmp_path}/nobody")


async def test_closing_the_stream_cancels_on_the_server(tmp_path: Path) -> None:
    service = ScriptedImageService([for_ever])

    async with serving(service, tmp_path) as address, AsyncClient(address) as client:
        async with aclosing(client.stream(ImageRequest("a circle"))) as events:
            assert isinstance(await anext(events), Accepted)
        await asyncio.wait_for(service.cancelled.wait(), 120)
