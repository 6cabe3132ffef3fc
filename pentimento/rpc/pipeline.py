"""What every call passes on its way to its handler and back.

From the outside in: metrics → error mapping → authentication → deadline → limits → decoding → handler. Handlers are
wrapped when their service is added, instead of through gRPC's interceptors: that costs a call nothing to look up,
leaves no method unwrapped, and lets authentication come before the request is parsed.

A handler is `async def` (unary answer) or an async generator (stream of answers). It raises domain errors, and is
cancelled (asyncio.CancelledError) when the caller cancels, disconnects or its deadline passes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from pentimento.domain.errors import DeadlineExceeded, InvalidArgument
from pentimento.domain.identity import Role
from pentimento.rpc import context as call_context
from pentimento.rpc.access import authorise
from pentimento.rpc.errors import code_of
from pentimento.rpc.failures import abort, explain, shutting_down, too_many_calls
from pentimento.rpc.metadata import AUTHORIZATION, REQUEST_ID
from pentimento.rpc.meter import CALLS, MethodMeter
from pentimento.rpc.tokens import Identities
from pentimento.telemetry.request_id import accept_request_id, request_id

T = TypeVar("T")
Tasks = set[asyncio.Task[Any]]
Context = grpc.aio.ServicerContext[Any, Any]
LAST_ANSWER_S = 0.5
# A grpc.RpcMethodHandler; its stub makes every attribute optional, where the two flags say which one is set.
Handler = Any


@dataclass(frozen=True)
class Limits:
    max_concurrent_calls: int
    unary_deadline_s: float


@dataclass(frozen=True)
class Method:
    """One RPC: "/package.Service/Method", who may call it, whether it is spared the limit of calls, and where its
    running calls are kept."""

    path: str
    allowed: frozenset[Role]
    needs_caller: bool
    limited: bool
    running: Tasks
    meter: MethodMeter
    decode: Callable[[Any], Any]
    encode: Callable[[Any], bytes]


class Call:
    """One call being served."""

    __slots__ = ("code", "method", "started_s", "task")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.code = "OK"
        self.started_s = time.perf_counter()
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        method.running.add(self.task)
        method.meter.begin()

    def end(self) -> None:
        self.method.running.discard(self.task)
        self.method.meter.end(self.code, time.perf_counter() - self.started_s)


class Pipeline:
    """Wraps handlers; knows the calls they are serving."""

    def __init__(self, identities: Identities, limits: Limits) -> None:
        self._identities = identities
        self._limits = limits
        self._unary: Tasks = set()
        self._streams: Tasks = set()
        self._exempt: Tasks = set()
        self._closed = False

    async def close(self, grace_s: float, stream_grace_s: float) -> None:
        """Refuses new calls, waits up to `grace_s` for unary ones and, within that, up to `stream_grace_s` for streams;
        what still runs is cancelled and answered UNAVAILABLE, which it has `LAST_ANSWER_S` to send."""
        self._closed = True
        end = time.monotonic() + grace_s
        await finished(self._unary, grace_s)
        await finished(self._streams, min(stream_grace_s, end - time.monotonic()))
        left = {*self._unary, *self._streams, *self._exempt}
        for task in left:
            task.cancel()
        # Before the connections close: a caller who reads their end first never learns why.
        await finished(left, LAST_ANSWER_S)

    def wrap(self, path: str, handler: Handler, allowed: frozenset[Role], *, limited: bool = True) -> Handler:
        """The same RPC with everything around it. gRPC handles bytes: decoding is ours, after authentication."""
        counted = self._streams if handler.response_streaming else self._unary
        method = Method(
            path,
            allowed,
            needs_caller=Role.ANYONE not in allowed,
            limited=limited,
            running=counted if limited else self._exempt,
            meter=CALLS.meter(path),
            decode=decoder(path, handler),
            encode=handler.response_serializer,
        )
        if handler.request_streaming:
            if handler.response_streaming:
                return grpc.stream_stream_rpc_method_handler(self._streaming(method, handler.stream_stream))
            return grpc.stream_unary_rpc_method_handler(self._answering(method, handler.stream_unary))
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(method, handler.unary_stream))
        return grpc.unary_unary_rpc_method_handler(self._answering(method, handler.unary_unary))

    def _answering(self, method: Method, behaviour: Callable[..., Any]) -> Callable[[Any, Context], Awaitable[bytes]]:
        async def answer(request: Any, context: Context) -> bytes:
            call = Call(method)
            try:
                self._admit(method, context)
                answering = behaviour(method.decode(request), context)
                if call_context.deadline.get() is None:
                    answering = self._within_our_deadline(answering)
                return method.encode(await answering)
            except BaseException as error:
                await self._fail(call, context, error)
            finally:
                call.end()

        return answer

    def _streaming(self, method: Method, behaviour: Callable[..., Any]) -> Callable[[Any, Context], Awaitable[None]]:
        async def answer(request: Any, context: Context) -> None:
            call = Call(method)
            try:
                self._admit(method, context)
                # Closed here and not by the garbage collector: a cancel must run the handler's `finally` now.
                async with aclosing(behaviour(method.decode(request), context)) as answers:
                    async for one in answers:
                        await context.write(method.encode(one))
            except BaseException as error:
                await self._fail(call, context, error)
            finally:
                call.end()

        return answer

    def _admit(self, method: Method, context: Context) -> None:
        """Request id, authentication, deadline, limits: raises what refuses the call, else fills the call's context."""
        authorization = offered_id = None
        for key, value in context.invocation_metadata() or ():
            if key == AUTHORIZATION:
                authorization = value
            elif key == REQUEST_ID:
                offered_id = value
        request_id.set(accept_request_id(offered_id))
        if method.needs_caller:
            caller = self._identities.identify(authorization)
            authorise(caller, method.allowed, method.path)
            call_context.caller.set(caller)
        remaining_s = context.time_remaining()
        if remaining_s is not None:
            call_context.deadline.set(time.monotonic() + remaining_s)
        if method.limited:
            self._check_limits()

    def _check_limits(self) -> None:
        if self._closed:
            raise shutting_down()
        if len(self._unary) + len(self._streams) > self._limits.max_concurrent_calls:
            raise too_many_calls(self._limits.max_concurrent_calls)

    async def _within_our_deadline(self, answering: Awaitable[T]) -> T:
        """gRPC itself cancels a call at the caller's deadline; a unary call without one gets ours."""
        call_context.deadline.set(time.monotonic() + self._limits.unary_deadline_s)
        try:
            async with asyncio.timeout(self._limits.unary_deadline_s) as timeout:
                return await answering
        except TimeoutError:
            if timeout.expired():
                raise DeadlineExceeded("DEADLINE_EXCEEDED", "the call took longer than this server allows") from None
            raise

    async def _fail(self, call: Call, context: Context, error: BaseException) -> NoReturn:
        """Answers with the error's status; what is no answer (a cancel, an exit) is raised again."""
        if isinstance(error, asyncio.CancelledError):
            if self._closed and not context.cancelled():
                call.code = grpc.StatusCode.UNAVAILABLE.name
                await abort(context, shutting_down())
            call.code = cancellation_code()
            raise error
        if isinstance(error, NotImplementedError):
            call.code = grpc.StatusCode.UNIMPLEMENTED.name
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{call.method.path} is not implemented here")
        if not isinstance(error, Exception):
            raise error
        known = explain(error, call.method.path)
        call.code = code_of(known).name
        await abort(context, known)


def cancellation_code() -> str:
    """Why the call being served was cancelled: its deadline, or its caller."""
    passed = call_context.remaining_s() == 0
    return (grpc.StatusCode.DEADLINE_EXCEEDED if passed else grpc.StatusCode.CANCELLED).name


async def finished(tasks: Tasks, timeout_s: float) -> None:
    """Returns when none of the tasks runs any more, or after `timeout_s`."""
    if tasks and timeout_s > 0:
        await asyncio.wait(tuple(tasks), timeout=timeout_s)


def decoder(path: str, handler: Handler) -> Callable[[Any], Any]:
    """Bytes to the request message, or a stream of the one to a stream of the other."""
    parse = handler.request_deserializer

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            raise InvalidArgument("MALFORMED_MESSAGE", f"the request of {path} is not a valid message") from None

    async def decode_stream(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield decode(data)

    return decode_stream if handler.request_streaming else decode
