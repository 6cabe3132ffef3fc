"""Test that the caller receives exactly the handler's error, without further details."""

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

# Surrogates cannot travel as UTF-8; a unit test covers them.
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


class ObjectMissing(errors.NotFound):
    """Return an error class outside the catalogue."""


HUGE = "\U0001f3a8" * 1_000_000
TOO_LONG = errors.InvalidArgument(
    "TOO_LONG", HUGE, violations=tuple(FieldViolation(HUGE, HUGE) for _ in range(100)), metadata={HUGE: HUGE}
)


async def test_handler_faults_arrive_as_classes_of_the_catalogue(target: Scripted, channel: grpc.aio.Channel) -> None:
    raised: list[Exception] = []

    async def fail(request: object) -> str:
        raise raised.pop()

    async def fail_in_group(request: object) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(request))
        return ""

    async def wrong(request: object) -> str:
        return 7  # type: ignore[return-value]

    good = target.embedder.embed
    for handler, error, cls, reason in (
        (fail, ObjectMissing("OBJECT_MISSING", "gone"), errors.NotFound, "OBJECT_MISSING"),
        (fail, TOO_LONG, errors.InvalidArgument, "TOO_LONG"),  # larger than headers may be: shortened
        (fail_in_group, errors.NotFound("NO_MODEL", "no such model"), errors.NotFound, "NO_MODEL"),
        (wrong, None, errors.Internal, None),
    ):
        raised[:] = [error] if error else []
        target.embedder.embed = handler
        received = error_from_rpc(await failure(channel))
        assert type(received) is cls
        assert reason in (None, received.reason)
        assert len(received.violations) == (6 if error is TOO_LONG else 0)
    target.embedder.embed = good
    assert await embed(channel, "next") == "next"

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await embedder_stub(channel).GetInfo(embedder.GetInfoRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert type(error_from_rpc(caught.value)) is errors.FailedPrecondition
    with pytest.raises(grpc.aio.AioRpcError) as malformed:
        await channel.unary_unary(EMBED_TEXT)(b"\x80\x04\x95pickle")
    assert error_from_rpc(malformed.value).reason == "MALFORMED_MESSAGE"


async def test_an_unknown_exception_is_internal_with_an_id_and_nothing_else(
    target: Scripted, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: object) -> str:
        raise KeyError("canary")

    target.embedder.embed = fail

    error = await failure(channel)

    received = error_from_rpc(error)
    # Only the call's records: objects of earlier tests may log a complaint when they are collected.
    logged = [record for record in caplog.records if record.getMessage() == "call failed"]
    assert (type(received), received.reason) == (errors.Internal, "UNEXPECTED")
    assert "canary" not in f"{error.details()} {error.trailing_metadata()} {error.debug_error_string()}"
    assert [(one.levelname, one.error_id) for one in logged] == [("ERROR", received.metadata["error_id"])]
    assert logged[0].exc_info is not None


async def test_missing_server_is_unavailable_and_address_is_hidden() -> None:
    async with open_channel("unix:/nonexistent/socket", RpcChannelSettings()) as channel:
        received = error_from_rpc(await failure(channel))

    assert type(received) is errors.Unavailable
    assert "nonexistent" not in received.message
