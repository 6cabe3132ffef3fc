"""Send a client images that exceed its message limit."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.clients.image import ImageJoiner
from pentimento.domain.errors import Internal, InvalidArgument, ResourceExhausted
from pentimento.domain.generation import FromNoise, GenerationSpec, Provenance, Route, Scheduler
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, ImageFormat
from pentimento.wire.codec import converter
from services.frontdoor.answers.large_images import ImageSplitter
from services.frontdoor.servicer import ImageServicer

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
OWN_LIMIT_BYTES = 32 * MEBIBYTE
SPEC = GenerationSpec("a circle", "", "tiny", 16, 8, 20, 3.0, Scheduler.DDIM, 7)
PROVENANCE = Provenance("r", SPEC, Route("r", FromNoise(), "tiny", "sha256:0"), "sha256:0", "w", 1, 1, 20, 0, "1")
SEVERAL = Accepted("p2-x", image_request_ids=("p2-x-0", "p2-x-1"))


def completed(size_bytes: int, index: int = 0) -> Completed:
    return Completed(
        f"p2-x-{index}", bytes(range(256)) * (size_bytes // 256), ImageFormat.PNG, 16, 8, PROVENANCE, index
    )


def splitter(stated_bytes: int, own_limit_bytes: int = OWN_LIMIT_BYTES) -> ImageSplitter[pb.GenerateResponse]:
    return ImageSplitter(pb.GenerateResponse, stated_bytes, own_limit_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "stated_bytes", "own_limit_bytes", "chunk_count"),
    [
        (4 * MEBIBYTE - 4 * KIBIBYTE, 0, OWN_LIMIT_BYTES, 0),
        (4 * MEBIBYTE - 4 * KIBIBYTE, 4 * MEBIBYTE, OWN_LIMIT_BYTES, 0),
        (4 * MEBIBYTE, 4 * MEBIBYTE, OWN_LIMIT_BYTES, 5),
        (9 * MEBIBYTE, 16 * MEBIBYTE, OWN_LIMIT_BYTES, 0),
        (9 * MEBIBYTE, 16 * MEBIBYTE, 8 * MEBIBYTE, 10),
        (MEBIBYTE, 256 * KIBIBYTE, OWN_LIMIT_BYTES, 5),
    ],
)
def test_image_beyond_the_stated_limit_comes_in_chunks_within_it(
    size_bytes: int, stated_bytes: int, own_limit_bytes: int, chunk_count: int
) -> None:
    event, joiner = completed(size_bytes), ImageJoiner()

    messages = list(splitter(stated_bytes, own_limit_bytes).messages(event))

    assert [message.WhichOneof("event") for message in messages] == ["image_chunk"] * chunk_count + ["completed"]
    assert max(message.ByteSize() for message in messages) <= min(stated_bytes or 4 * MEBIBYTE, own_limit_bytes)
    assert [joiner.event(message) for message in messages] == [None] * chunk_count + [event]


def test_chunks_of_several_images_may_come_between_each_other() -> None:
    first, second = ([*splitter(MEBIBYTE).messages(completed(2 * MEBIBYTE, index))] for index in (0, 1))
    joiner = ImageJoiner()

    heard = [joiner.event(message) for pair in zip(first, second, strict=True) for message in pair]

    assert [event for event in heard if event] == [completed(2 * MEBIBYTE, 0), completed(2 * MEBIBYTE, 1)]


def test_client_without_stated_limit_gets_error_for_large_image() -> None:
    told = splitter(0)
    messages = [
        message for event in (SEVERAL, completed(256), completed(5 * MEBIBYTE, 1)) for message in told.messages(event)
    ]
    events: list[GenerateEvent] = [
        converter(GenerateEvent, pb.GenerateResponse).decode(message) for message in messages
    ]

    assert events[:2] == [SEVERAL, completed(256)]
    failed = events[2]
    assert isinstance(failed, ImageFailed)
    assert (failed.request_id, failed.image_index, failed.error.reason) == ("p2-x-1", 1, "MESSAGE_TOO_LARGE")
    assert "has 5242880 bytes" in failed.error.message
    assert "ask for p2-x-1 again by Attach with max_message_bytes" in failed.error.message


def test_one_large_image_ends_the_stream_of_a_client_that_states_nothing() -> None:
    told = splitter(0)

    with pytest.raises(ResourceExhausted, match="a client that states no max_message_bytes") as refused:
        list(told.messages(completed(5 * MEBIBYTE)))

    assert refused.value.reason == "MESSAGE_TOO_LARGE"


@pytest.mark.parametrize("stated_bytes", [1, 256 * KIBIBYTE - 1])
def test_too_small_message_limit_is_rejected_by_name(stated_bytes: int) -> None:
    with pytest.raises(InvalidArgument, match=f"max_message_bytes.* must be 0 or at least 262144, got {stated_bytes}"):
        splitter(stated_bytes)


def test_image_of_which_a_part_lacks_is_none() -> None:
    _, *others = splitter(MEBIBYTE).messages(completed(2 * MEBIBYTE))
    joiner = ImageJoiner()

    with pytest.raises(Internal, match="of the 2097152 bytes of an image came"):
        list(map(joiner.event, others))


async def handed_over(take: Callable[[], Awaitable[object]]) -> int:
    """Return how many of two events a client has that takes each message by `take`, within no time at all."""

    async def events() -> AsyncGenerator[GenerateEvent, None]:
        yield Accepted("r")
        for _ in range(10):
            await asyncio.sleep(0)
        yield Accepted("r", replayed=True)

    servicer = ImageServicer(*[None] * 8, 0.0)  # type: ignore[arg-type]
    count = 0
    async for _ in servicer._told(events(), splitter(0)):
        await take()
        count += 1
    return count


async def test_stream_waits_for_events_without_limit() -> None:
    async def at_once() -> None:
        """Take the message before the event loop runs again."""

    assert await handed_over(at_once) == 2


async def test_client_that_takes_no_message_in_time_is_cut_off() -> None:
    async with asyncio.timeout(60):
        reading = asyncio.create_task(handed_over(asyncio.Event().wait))
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)

    assert isinstance(outcome, asyncio.CancelledError)
