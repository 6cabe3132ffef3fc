"""What a handler raises is what the caller gets, and nothing more."""

import asyncio

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder
from pentimento.domain import errors
from pentimento.domain.errors import FieldViolation, PentimentoError
from pentimento.rpc import RpcChannelSettings, error_from_rpc, open_channel
from pentimento.rpc.errors import CODE_OF
from tests.contract.rpc.scripted import EMBED_TEXT, Scripted, embed, embedder_stub

# Surrogates cannot travel as UTF-8; they have a unit test of their own.
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=24)
domain_errors = st.builds(
    lambda cls, reason, message, violations, retry, metadata: cls(
        reason, message, violations=tuple(violations), retry_after_ms=retry, metadata=metadata
    ),
    st.sampled_from(sorted(CODE_OF, key=lambda cls: cls.__name__)),
    st.from_regex(r"\A[A-Z][A-Z0-9_]{0,40}[A-Z0-9]\Z"),
    texts,
    st.lists(st.builds(FieldViolation, texts, texts), max_size=6),
    st.none() | st.integers(0, 10**9),
    st.dictionaries(texts, texts, max_size=6),
)


def content(error: PentimentoError) -> tuple[object, ...]:
    return (
        type(error),
        error.reason,
        error.message,
        error.violations,
        error.retry_after_ms,
        error.metadata,
    )


async def failure(channel: grpc.aio.Channel, *arguments: str, **options: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await embed(channel, *arguments, **options)
    return caught.value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raised=domain_errors)
async def test_every_domain_error_arrives_whole(
    target: Scripted, channel: grpc.aio.Channel, raised: PentimentoError
) -> None:
    async def fail(request: object) -> str:
        raise raised

    target.embedder.embed = fail

    error = await failure(channel)

    assert content(error_from_rpc(error)) == content(raised)
    assert error.code() is CODE_OF[type(raised)]


async def test_a_subclass_travels_as_the_class_of_the_catalogue(target: Scripted, channel: grpc.aio.Channel) -> None:
    class ObjectMissing(errors.NotFound):
        pass

    async def fail(request: object) -> str:
        raise ObjectMissing("OBJECT_MISSING", "gone")

    target.embedder.embed = fail

    received = error_from_rpc(await failure(channel))

    assert (type(received), received.reason) == (errors.NotFound, "OBJECT_MISSING")


async def test_an_error_larger_than_headers_may_be_is_cut_and_still_arrives(
    target: Scripted, channel: grpc.aio.Channel
) -> None:
    async def fail(request: object) -> str:
        huge = "\U0001f3a8" * 1_000_000
        violations = tuple(FieldViolation(huge, huge) for _ in range(100))
        raise errors.InvalidArgument("TOO_LONG", huge, violations=violations, metadata={huge: huge})

    target.embedder.embed = fail

    received = error_from_rpc(await failure(channel))

    assert received.reason == "TOO_LONG"
    assert len(received.violations) == 6


async def test_an_unknown_exception_is_internal_with_an_id_and_nothing_else(
    target: Scripted, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: object) -> str:
        raise KeyError("canary")

    target.embedder.embed = fail

    error = await failure(channel)

    received = error_from_rpc(error)
    # Of calls: what earlier tests left may complain of itself whenever it is collected.
    logged = [record for record in caplog.records if record.getMessage() == "call failed"]
    assert (type(received), received.reason) == (errors.Internal, "UNEXPECTED")
    assert "canary" not in f"{error.details()} {error.trailing_metadata()} {error.debug_error_string()}"
    assert [(one.levelname, one.error_id) for one in logged] == [("ERROR", received.metadata["error_id"])]
    assert logged[0].exc_info is not None


async def test_a_task_group_of_domain_errors_is_its_first(target: Scripted, channel: grpc.aio.Channel) -> None:
    async def refuse() -> None:
        raise errors.NotFound("NO_MODEL", "no such model")

    async def fail(request: object) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())
        return ""

    target.embedder.embed = fail

    assert error_from_rpc(await failure(channel)).reason == "NO_MODEL"


async def test_a_handler_that_is_not_written_is_unimplemented(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await embedder_stub(channel).GetInfo(embedder.GetInfoRequest())

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert type(error_from_rpc(caught.value)) is errors.FailedPrecondition


async def test_bytes_that_are_no_message_are_invalid(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(EMBED_TEXT)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\x80\x04\x95pickle")

    assert error_from_rpc(caught.value).reason == "MALFORMED_MESSAGE"


async def test_an_answer_of_the_wrong_type_is_a_defect_and_the_next_call_succeeds(
    target: Scripted, channel: grpc.aio.Channel
) -> None:
    async def wrong(request: object) -> str:
        return 7  # type: ignore[return-value]

    good = target.embedder.embed
    target.embedder.embed = wrong
    received = error_from_rpc(await failure(channel))
    target.embedder.embed = good

    assert type(received) is errors.Internal
    assert await embed(channel, "next") == "next"


async def test_a_server_that_is_not_there_is_unavailable_without_its_address() -> None:
    async with open_channel("unix:/nonexistent/socket", RpcChannelSettings()) as channel:
        received = error_from_rpc(await failure(channel))

    assert type(received) is errors.Unavailable
    assert "nonexistent" not in received.message
