"""The public client against a real server that plays a script."""

import _weakrefset
import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import grpc.aio
import pytest

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import add_ImageServiceServicer_to_server
from pentimento.domain.errors import Cancelled, Internal, InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.generation import FromNoise, GenerationSpec, Provenance, Route, Scheduler
from pentimento.domain.image_request import Accepted, Completed, ImageFormat, ImageRequest, PictureFailed, Progress
from pentimento.rpc.server import RpcServer
from pentimento.rpc.settings import RpcServerSettings
from pentimento.sdk import AsyncClient, Client, RetryPolicy
from pentimento.settings import SettingsError
from pentimento.wire.generation import route_to_proto
from pentimento.wire.image import event_to_proto

Script = Callable[[], AsyncIterator[pb.GenerateResponse]]
ACCEPTED = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-1"))
REPLAYED = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-1", replayed=True))
SPEC = GenerationSpec("a circle", "", "tiny", 16, 8, 20, 3.0, Scheduler.DDIM, 7)
PROVENANCE = Provenance(
    "request-1", SPEC, Route("r", FromNoise(), "tiny", "sha256:0"), "sha256:0", "w", 1, 1, 20, 0, "1"
)
COMPLETED = event_to_proto(Completed("request-1", b"image", ImageFormat.PNG, 16, 8, PROVENANCE))
QUICK = RetryPolicy(tries=3, first_pause_s=0.01, max_pause_s=0.02)


@dataclass
class ScriptedImageService:
    """Each call of Generate plays the next script."""

    scripts: list[Script]
    keys: list[str] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(self, request: pb.GenerateRequest, context: object) -> AsyncIterator[pb.GenerateResponse]:
        self.keys.append(request.idempotency_key)
        try:
            async for event in self.scripts.pop(0)():
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            # The one while it waits for the script, the other while an event is being sent.
            self.cancelled.set()
            raise

    async def _unused(self, request: object, context: object) -> None:
        raise AssertionError("not part of the script")

    Cancel = GetRequest = Explain = ListModels = Replay = Pin = Unpin = _unused
    Submit = Attach = ListRequests = GetResultUrl = GetWebhookKey = _unused


def plays(*events: pb.GenerateResponse, then: PentimentoError | None = None) -> Script:
    async def script() -> AsyncIterator[pb.GenerateResponse]:
        for event in events:
            yield event
        if then is not None:
            raise then

    return script


async def for_ever() -> AsyncIterator[pb.GenerateResponse]:
    yield ACCEPTED
    step = 0
    while True:
        step += 1
        yield pb.GenerateResponse(progress=pb.Progress(step=step, step_count=1_000_000))
        await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(service: ScriptedImageService, tmp_path: Path) -> AsyncIterator[str]:
    address = f"unix:{tmp_path}/s"
    server = RpcServer(RpcServerSettings(listen=(address,)), "frontdoor")
    server.add(add_ImageServiceServicer_to_server, service, "pentimento.api.image.v1.ImageService")
    await server.start()
    try:
        yield address
    finally:
        await server.stop()


async def picture_from(address: str, key: str = "") -> bytes:
    async with AsyncClient(address, retries=QUICK) as client:
        return (await client.generate(ImageRequest("a circle"), idempotency_key=key)).data


async def test_unavailable_is_retried_under_the_same_key(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(then=Unavailable("DOWN", "down")), plays(REPLAYED, COMPLETED)])

    async with serving(service, tmp_path) as address:
        image = await picture_from(address)

    assert image == b"image"
    assert len(service.keys) == 2
    assert len(set(service.keys)) == 1
    assert service.keys[0]


async def test_a_picture_is_read_to_the_end_of_its_stream(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def script() -> AsyncIterator[pb.GenerateResponse]:
        yield COMPLETED
        await asyncio.sleep(0.05)
        ended.set()

    service = ScriptedImageService([script])
    async with serving(service, tmp_path) as address:
        await picture_from(address)

    assert ended.is_set()
    assert not service.cancelled.is_set()


async def test_how_a_call_ends_after_its_picture_concerns_nobody(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(COMPLETED, then=Unavailable("DOWN", "down"))])

    async with serving(service, tmp_path) as address:
        image = await picture_from(address)

    assert image == b"image"


async def test_stream_that_breaks_goes_on_without_saying_accepted_twice(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(ACCEPTED, then=Unavailable("DOWN", "down")), plays(REPLAYED, COMPLETED)])

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        events = [type(event).__name__ async for event in client.stream(ImageRequest("a circle"))]

    assert events == ["Accepted", "Completed"]


async def test_broken_connection_taken_for_a_cancel_begins_anew(tmp_path: Path) -> None:
    cancelled = Cancelled("CLIENT_LEFT", "cancelled by the client")
    scripts = [plays(ACCEPTED, then=Unavailable("DOWN", "down")), plays(then=cancelled), plays(ACCEPTED, COMPLETED)]
    service = ScriptedImageService(scripts)

    async with serving(service, tmp_path) as address:
        image = await picture_from(address)

    assert image == b"image"
    assert service.keys[0] == service.keys[1] != service.keys[2]


async def test_what_begins_anew_is_told_under_its_own_id(tmp_path: Path) -> None:
    cancelled = Cancelled("CLIENT_LEFT", "cancelled by the client")
    anew = pb.GenerateResponse(accepted=pb.Accepted(request_id="request-2"))
    scripts = [plays(ACCEPTED, then=Unavailable("DOWN", "down")), plays(then=cancelled), plays(anew, COMPLETED)]
    service = ScriptedImageService(scripts)

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        events = [event async for event in client.stream(ImageRequest("a circle"))]

    assert [event.request_id for event in events if isinstance(event, Accepted)] == ["request-1", "request-2"]


@pytest.mark.parametrize(("key", "reason"), [("order-7", "CLIENT_LEFT"), ("", "CANCELLED")])
async def test_cancel_is_told_when_somebody_asked_or_the_key_is_the_callers(
    tmp_path: Path, key: str, reason: str
) -> None:
    cancelled = Cancelled(reason, "cancelled")
    service = ScriptedImageService([plays(ACCEPTED, then=Unavailable("DOWN", "down")), plays(then=cancelled)])

    async with serving(service, tmp_path) as address:
        with pytest.raises(Cancelled):
            await picture_from(address, key=key)


async def test_callers_own_key_is_used(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(ACCEPTED, COMPLETED)])

    async with serving(service, tmp_path) as address:
        await picture_from(address, key="order-7")

    assert service.keys == ["order-7"]


async def test_retries_end(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(then=Unavailable("DOWN", "down")) for _ in range(5)])

    async with serving(service, tmp_path) as address:
        with pytest.raises(Unavailable):
            await picture_from(address)

    assert len(service.keys) == QUICK.tries


async def test_wrong_field_is_not_retried_and_is_named(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(then=InvalidArgument.of("prompt", "must not be empty"))])

    async with serving(service, tmp_path) as address:
        with pytest.raises(InvalidArgument) as wrong:
            await picture_from(address)

    assert wrong.value.violations[0].field == "prompt"
    assert len(service.keys) == 1


TWO = pb.GenerateResponse(accepted=pb.Accepted(request_id="p2-x", image_request_ids=["p2-x-0", "p2-x-1"]))


def completed(index: int) -> pb.GenerateResponse:
    return event_to_proto(Completed(f"p2-x-{index}", b"image %d" % index, ImageFormat.PNG, 16, 8, PROVENANCE, index))


def failed(index: int) -> pb.GenerateResponse:
    return event_to_proto(PictureFailed(f"p2-x-{index}", index, Internal("BROKEN", "the decoder broke")))


async def test_several_pictures_come_in_the_order_of_their_indexes(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(TWO, completed(1), completed(0))])

    async with serving(service, tmp_path) as address, AsyncClient(address) as client:
        found = await client.generate_all(ImageRequest("a circle", image_count=2))

    assert (found.request_id, [picture.data for picture in found.pictures]) == ("p2-x", [b"image 0", b"image 1"])
    assert found.raise_failure() is found


async def test_a_picture_that_failed_does_not_hide_the_other(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(TWO, failed(0), completed(1))])

    async with serving(service, tmp_path) as address, AsyncClient(address) as client:
        found = await client.generate_all(ImageRequest("a circle", image_count=2))

    assert [picture.data for picture in found.pictures] == [b"image 1"]
    assert [(one.image_index, one.error.reason) for one in found.failures] == [(0, "BROKEN")]
    with pytest.raises(Internal, match="the decoder broke"):
        found.raise_failure()


async def test_a_retry_gives_each_picture_once_and_progress_of_those_that_are_missing(tmp_path: Path) -> None:
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


async def test_generate_is_for_one_picture(tmp_path: Path) -> None:
    async with AsyncClient(f"unix:{tmp_path}/nobody") as client:
        with pytest.raises(InvalidArgument, match="image_count: must be 1, got 2: generate_all has several"):
            await client.generate(ImageRequest("a circle", image_count=2))


async def test_the_blocking_client_returns_several_pictures(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(TWO, completed(0), completed(1))])

    async with serving(service, tmp_path) as address:

        def paint() -> int:
            with Client(address) as client:
                return len(client.generate_all(ImageRequest("a circle", image_count=2)).pictures)

        assert await asyncio.to_thread(paint) == 2


@dataclass
class AwayAtFirst(ScriptedImageService):
    """Answers every call that is no stream, after it was away for one."""

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
ASKED: dict[str, tuple[str, object, Callable[[AsyncClient], Awaitable[object]]]] = {
    "cancel": ("Cancel", pb.CancelResponse(state=CANCELLED), lambda client: client.cancel("r")),
    "get_request": ("GetRequest", pb.GetRequestResponse(state=CANCELLED), lambda client: client.get_request("r")),
    "pin": ("Pin", pb.PinResponse(request_id="r"), lambda client: client.pin("r", 1000)),
    "unpin": ("Unpin", pb.UnpinResponse(), lambda client: client.unpin("r")),
    "list_models": ("ListModels", pb.ListModelsResponse(), lambda client: client.list_models()),
    "list_adapters": ("ListModels", pb.ListModelsResponse(), lambda client: client.list_adapters()),
    "list_requests": ("ListRequests", pb.ListRequestsResponse(), lambda client: client.list_requests()),
    "explain": (
        "Explain",
        pb.ExplainResponse(route=route_to_proto(PROVENANCE.route)),
        lambda client: client.explain(ImageRequest("a circle")),
    ),
}


@pytest.mark.parametrize("name", ASKED)
async def test_questions_are_asked_again_where_the_server_did_not_answer(tmp_path: Path, name: str) -> None:
    rpc, answer, ask = ASKED[name]
    service = AwayAtFirst([]).answering(rpc, answer)

    async with serving(service, tmp_path) as address, AsyncClient(address, retries=QUICK) as client:
        await ask(client)

    assert service.calls == [rpc, rpc]


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        await picture_from(f"unix:{tmp_path}/nobody")


async def test_closing_the_stream_cancels_on_the_server(tmp_path: Path) -> None:
    service = ScriptedImageService([for_ever])

    async with serving(service, tmp_path) as address, AsyncClient(address) as client:
        async with aclosing(client.stream(ImageRequest("a circle"))) as events:
            assert isinstance(await anext(events), Accepted)
        await asyncio.wait_for(service.cancelled.wait(), 120)


async def test_blocking_client_streams_and_cancels_by_closing(tmp_path: Path) -> None:
    service = ScriptedImageService([for_ever])

    def first_progress(address: str) -> Progress:
        with Client(address) as client:
            events = client.stream(ImageRequest("a circle"))
            found = next(event for event in events if isinstance(event, Progress))
            events.close()
            return found

    async with serving(service, tmp_path) as address:
        progress = await asyncio.to_thread(first_progress, address)
        await asyncio.wait_for(service.cancelled.wait(), 120)

    assert progress.step == 1


async def test_blocking_client_returns_the_picture(tmp_path: Path) -> None:
    service = ScriptedImageService([plays(ACCEPTED, COMPLETED)])

    def paint(address: str) -> bytes:
        with Client(address) as client:
            return client.generate(ImageRequest("a circle")).data

    async with serving(service, tmp_path) as address:
        assert await asyncio.to_thread(paint, address) == b"image"


def test_closing_leaves_no_other_thread_waiting() -> None:
    def ask_until_closed(client: Client) -> None:
        with suppress(RuntimeError, grpc.aio.UsageError):
            while True:
                with suppress(Unavailable):
                    client.list_models()

    for _ in range(20):
        client = Client("unix:/nobody", retries=RetryPolicy(tries=1))
        asking = [threading.Thread(target=ask_until_closed, args=(client,), daemon=True) for _ in range(3)]
        for thread in asking:
            thread.start()
        client.close()
        for thread in asking:
            thread.join(20)

        assert [thread for thread in asking if thread.is_alive()] == []


def test_a_client_that_could_not_be_made_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()

    with pytest.raises(SettingsError):
        Client("localhost:1", tls_ca_file=tmp_path / "none.pem")

    assert threading.active_count() == before


class InterruptAtLine:
    """Stands in for Ctrl-C at the n-th line that this thread executes, but for those of callbacks of weak references:
    Python itself drops what is raised there."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> "InterruptAtLine | None":
        if frame.f_code.co_filename == _weakrefset.__file__:
            return None
        self.left -= event == "line"
        if self.left == 0:
            raise KeyboardInterrupt
        return self


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_interrupt_at_any_line_cancels_on_the_server(tmp_path: Path) -> None:
    def interrupted(address: str, line: int) -> bool:
        with Client(address) as client, closing(client.stream(ImageRequest("a circle"))) as events:
            next(events)
            previous = sys.gettrace()
            sys.settrace(InterruptAtLine(line))
            try:
                next(events)
            except KeyboardInterrupt:
                return True
            finally:
                sys.settrace(previous)
            return False

    line = 0
    left = False
    while not left:
        line += 1
        service = ScriptedImageService([for_ever])
        async with serving(service, tmp_path) as address:
            left = not await asyncio.to_thread(interrupted, address, line)
            await asyncio.wait_for(service.cancelled.wait(), 120)

    assert line > 10
