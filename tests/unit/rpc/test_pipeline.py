"""Parts of a call's way that need no wire."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import pytest

from pentimento.domain.errors import PermissionDenied, Unauthenticated
from pentimento.domain.tenants import OPEN_CALLER, Caller, Role
from pentimento.rpc import context
from pentimento.rpc import pipeline as module
from pentimento.rpc.access import Access
from pentimento.rpc.pipeline import UNIX_PEER, Call, Pipeline, finished, host_of
from pentimento.rpc.settings import RpcServerSettings
from pentimento.rpc.tokens import OpenDoor

LIMITS = RpcServerSettings(max_concurrent_calls=8, tenant_calls_per_s=10.0)


def test_host_and_cancellation_code_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {
        "ipv4:1.2.3.4:5": "ipv4:1.2.3.4",
        "ipv6:[::1]:80": "ipv6:[::1]",
        "unix:": "unix",
        "unix:/run/s.sock": "unix",
    }
    assert {peer: host_of(peer) for peer in hosts} == hosts
    for remaining_s, code in ((None, "CANCELLED"), (0.0, "DEADLINE_EXCEEDED"), (3.0, "CANCELLED"), (1.0, "CANCELLED")):
        monkeypatch.setattr(context, "remaining_s", lambda found=remaining_s: found)
        assert context.cancellation_code() == code


async def test_wait_for_tasks_ends_with_tasks_or_timeout() -> None:
    release = asyncio.Event()
    task = asyncio.create_task(release.wait())

    await finished({task}, 0.01)
    early = task.done()
    await finished({task}, 0.0)
    asyncio.get_running_loop().call_later(0.01, release.set)
    await finished({task}, 60.0)

    assert (early, task.done()) == (False, True)
    await finished(set(), 60.0)


async def test_ended_call_releases_its_places_and_is_counted() -> None:
    told: list[object] = []
    meter = SimpleNamespace(
        begin=lambda: told.append("begin"), end=lambda code, seconds, _: told.append((code, seconds))
    )
    method = SimpleNamespace(meter=meter, running=set(), audited=False)
    call = Call(method, UNIX_PEER)  # type: ignore[arg-type]
    running = set(method.running)
    call.key = "acme"
    for word in ("first", "second"):
        call.holds(lambda key, word=word: told.append((word, key)))

    call.end()

    *before, (code, seconds) = told
    assert (before, code) == (["begin", ("first", "acme"), ("second", "acme")], "OK")
    assert 0 <= seconds < 3600
    assert (running, method.running) == ({asyncio.current_task()}, set())


async def test_calls_that_exceed_grace_are_cancelled() -> None:
    pipeline = Pipeline(OpenDoor(), LIMITS)
    running = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    for kept, task in zip((pipeline._unary, pipeline._streams, pipeline._exempt), running, strict=True):
        kept.add(task)

    await pipeline.close(0.0, 0.0)

    assert [task.cancelled() for task in running] == [True] * 3


def none_is_to_come() -> bool:
    return False


async def test_stop_refuses_waiting_calls_until_none_comes() -> None:
    pipeline = Pipeline(OpenDoor(), LIMITS)

    async def come() -> None:
        for _ in range(5):
            pipeline._begun_count += 1
            await asyncio.sleep(0)

    coming = asyncio.create_task(come())
    await pipeline.refuse_waiting(0.0, 60.0, none_is_to_come)
    taken = pipeline._begun_count
    await coming

    assert taken == 5


async def test_stop_waits_for_expected_calls_through_a_pause() -> None:
    """On a busy machine the next one takes longer than a quiet moment."""
    pipeline = Pipeline(OpenDoor(), LIMITS)
    to_come = iter([True, True, True, False])

    await pipeline.refuse_waiting(0.0, 60.0, lambda: next(to_come))

    assert next(to_come, None) is None


async def test_stop_ends_although_calls_keep_coming() -> None:
    await Pipeline(OpenDoor(), LIMITS).refuse_waiting(0.0, 0.05, lambda: True)
    pipeline = Pipeline(OpenDoor(), LIMITS)

    async def come() -> None:
        while True:
            pipeline._begun_count += 1
            await asyncio.sleep(0)

    coming = asyncio.create_task(come())
    await asyncio.sleep(0)  # the first has come, also where the time is up before the next look
    await pipeline.refuse_waiting(0.0, 0.05, none_is_to_come)
    coming.cancel()

    assert pipeline._begun_count > 0


class Silence:
    """The context of a call that brings nothing: no metadata, no deadline, no message."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "unix:"

    def set_code(self, code: object) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, metadata: object) -> None:
        pass

    def cancelled(self) -> bool:
        return False


async def served(pipeline: Pipeline, context: Silence | None = None, *, limited: bool = True) -> asyncio.Task[object]:
    """Start a call with a stream of answers that does not end by itself."""
    entered = asyncio.Event()

    async def answers(_requests: object, _context: object) -> AsyncIterator[bytes]:
        entered.set()
        await asyncio.Event().wait()
        yield b""

    handler = grpc.stream_stream_rpc_method_handler(answers)
    wrapped = pipeline.wrap("/a.B/C", handler, Access(frozenset({Role.ANYONE})), limited=limited)
    task = asyncio.create_task(wrapped.stream_stream(None, context or Silence()))
    await entered.wait()
    return task


async def test_stop_waits_for_streams_no_longer_than_their_own_grace() -> None:
    pipeline, context = Pipeline(OpenDoor(), LIMITS), Silence()
    call = await served(pipeline, context)

    assert pipeline.activity == (1, 1)
    async with asyncio.timeout(60.0):
        await pipeline.close(grace_s=1000.0, stream_grace_s=0.0)
    await call

    assert (context.code, context.details) == (grpc.StatusCode.UNAVAILABLE, "this server is stopping")
    assert pipeline.activity == (1, 0)


async def test_unlimited_calls_do_not_delay_stop() -> None:
    pipeline, context = Pipeline(OpenDoor(), LIMITS), Silence()
    call = await served(pipeline, context, limited=False)

    async with asyncio.timeout(60.0):
        await pipeline.close(grace_s=1000.0, stream_grace_s=1000.0)
    await call

    assert context.details == "this server is stopping"


async def test_unlimited_socket_file_calls_are_not_counted() -> None:
    pipeline = Pipeline(OpenDoor(), RpcServerSettings(max_concurrent_calls=1))

    calls = [await served(pipeline) for _ in range(3)]

    assert [call.done() for call in calls] == [False] * 3
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_answers_only_calls_that_its_stop_or_handler_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    running, stopping, silence = Pipeline(OpenDoor(), LIMITS), Pipeline(OpenDoor(), LIMITS), Silence()
    await stopping.close(0.0, 0.0)
    cancelled = asyncio.CancelledError()
    for pipeline, error, by_caller, answered, code in (
        (stopping, cancelled, False, True, "UNAVAILABLE"),
        (stopping, cancelled, True, False, "CANCELLED"),
        (running, cancelled, False, False, "CANCELLED"),
        (running, cancelled, True, False, "CANCELLED"),
        (running, KeyboardInterrupt(), False, False, None),
        (running, SystemExit(1), False, False, None),
        (running, GeneratorExit(), False, False, None),
        (running, NotImplementedError(), False, True, "UNIMPLEMENTED"),
    ):
        monkeypatch.setattr(Silence, "cancelled", lambda _, found=by_caller: found)
        call = SimpleNamespace(code="OK", method=SimpleNamespace(path="/a.B/C"))
        assert pipeline._answers(call, silence, error) is answered, error  # type: ignore[arg-type]
        assert code in (None, call.code)

    assert (silence.code, silence.details) == (grpc.StatusCode.UNIMPLEMENTED, "/a.B/C is not implemented here")


class Shared:
    """Identifies tenants by tokens; no call here has one."""

    def identify(self, authorization: object) -> None:
        return None

    def reload(self) -> None:
        pass


async def steady_count(caller: Caller | None, identities: object) -> int:
    """Return how many of three open message streams of one caller hold a place."""
    pipeline = Pipeline(identities, LIMITS)  # type: ignore[arg-type]
    kept: list[str] = []
    pipeline._intake = SimpleNamespace(keep_place=kept.append, leave_place=kept.remove, many=lambda *_: None)  # type: ignore[assignment]
    meter = SimpleNamespace(begin=lambda: None, end=lambda *_: None)
    method = SimpleNamespace(meter=meter, running=set(), audited=False, decode=None, limit_bytes=1)
    calls = [Call(method, UNIX_PEER) for _ in range(3)]  # type: ignore[arg-type]
    for call in calls:
        call.caller, call.key = caller, "acme"
        await pipeline._messages(call, Silence())  # type: ignore[arg-type]
    held = len(kept)
    for call in calls:
        call.end()
    assert kept == []
    return held


async def test_each_stream_holds_place_except_streams_of_suite() -> None:
    for roles, held in (({Role.USER}, 3), ({Role.ADMIN}, 3), ({Role.SERVICE}, 0), ({Role.SERVICE, Role.USER}, 0)):
        assert await steady_count(Caller("acme", frozenset(roles)), Shared()) == held
    assert await steady_count(None, Shared()) == 3
    assert await steady_count(OPEN_CALLER, OpenDoor()) == 3


@pytest.mark.parametrize(("come", "slept"), [(0, [0.25]), (1, [0.25, 1.0]), (2, [0.25, 1.0, 1.0])])
async def test_stop_waits_four_times_as_long_once_calls_have_come(
    come: int, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(OpenDoor(), LIMITS)
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)
        pipeline._begun_count += len(found) <= come

    monkeypatch.setattr(module.asyncio, "sleep", sleep)

    await pipeline.refuse_waiting(0.25, 60.0, none_is_to_come)

    assert found == slept


class CallFromAddress:
    """The context of a call from an address."""

    def peer(self) -> str:
        return "ipv4:1.2.3.4:5"


@pytest.mark.parametrize(
    ("identities", "caller", "shaped"),
    [
        (Shared(), None, ["peer ipv4:1.2.3.4"]),
        (Shared(), Caller("acme", frozenset({Role.ADMIN})), ["tenant acme"]),
        (Shared(), Caller("acme", frozenset({Role.USER})), ["tenant acme"]),
        (Shared(), Caller("acme", frozenset({Role.USER, Role.SERVICE})), []),
        (OpenDoor(), OPEN_CALLER, []),
    ],
    ids=["stranger", "too few rights", "tenant", "the suite's own", "open"],
)
async def test_strangers_are_shaped_by_their_address_and_tenants_by_their_name(
    identities: object, caller: Caller | None, shaped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(identities, LIMITS)  # type: ignore[arg-type]
    monkeypatch.setattr(identities, "identify", lambda authorization: caller)
    begun: list[str] = []

    async def begin(key: str) -> None:
        begun.append(key)

    monkeypatch.setattr(pipeline._shaper, "begin", begin)
    method = SimpleNamespace(meter=SimpleNamespace(begin=lambda: None), running=set())
    call = Call(method, UNIX_PEER)  # type: ignore[arg-type]
    method.allowed, method.path, method.callers = frozenset({Role.USER}), "/a.B/C", None

    with contextlib.suppress(Unauthenticated, PermissionDenied):
        await pipeline._identify(call, CallFromAddress(), None)  # type: ignore[arg-type]

    assert begun == shaped


async def test_unary_call_begins_once_and_returns_handlers_answer() -> None:
    pipeline = Pipeline(OpenDoor(), LIMITS)

    async def answer(_requests: object, _context: object) -> bytes:
        return b"answer"

    handler = grpc.stream_unary_rpc_method_handler(answer, response_serializer=lambda data: data + b"!")
    wrapped = pipeline.wrap("/a.B/C", handler, Access(frozenset({Role.ANYONE})), limited=True)

    assert await wrapped.stream_unary(None, Silence()) == b"answer!"
    assert (pipeline._begun_count, pipeline._unary) == (1, set())
