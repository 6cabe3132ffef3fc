"""What every call passes on its way to its handler and back.

From the outside in: metrics → error mapping → authentication → deadline → limits → decoding → handler. Handlers are
wrapped when their service is added, instead of through gRPC's interceptors: that costs a call nothing to look up,
leaves no method unwrapped, and lets authentication come before the request is parsed.

A handler is `async def` (unary answer) or an async generator (stream of answers). It raises domain errors, and is
cancelled (asyncio.CancelledError) when the caller cancels, disconnects or its deadline passes.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from pentimento.domain.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PentimentoError,
    ResourceExhausted,
    Unavailable,
)
from pentimento.domain.identity import Role
from pentimento.rpc import context as call_context
from pentimento.rpc.access import authorise
from pentimento.rpc.errors import code_of, to_status, unexpected
from pentimento.rpc.metadata import AUTHORIZATION, REQUEST_ID, STATUS_DETAILS
from pentimento.rpc.meter import MethodMeter
from pentimento.rpc.tokens import Identities
from pentimento.telemetry.request_id import accept_request_id, request_id

logger = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
# A grpc.RpcMethodHandler; its stub makes every attribute optional, where the two flags say which one is set.
Handler = Any

RETRY_AFTER_MS = 250


@dataclass(frozen=True)
class Method:
    """One RPC: "/package.Service/Method", who may call it, and whether it counts against the limit of calls."""

    path: str
    allowed: frozenset[Role]
    limited: bool
    handler: Handler
    meter: MethodMeter


@dataclass(frozen=True)
class Limits:
    max_concurrent_calls: int
    unary_deadline_s: float


class Pipeline:
    """Wraps handlers; counts the calls they are serving."""

    def __init__(self, identities: Identities, limits: Limits) -> None:
        self._identities = identities
        self._limits = limits
        self._unary_tasks: set[asyncio.Task[Any]] = set()
        self._stream_tasks: set[asyncio.Task[Any]] = set()
        self._exempt_tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def close(self, grace_s: float, stream_grace_s: float) -> None:
        """Refuses new calls, waits up to `grace_s` for unary ones and, within that, up to `stream_grace_s` for streams;
        what still runs is cancelled and answered UNAVAILABLE."""
        self._closed = True
        end = time.monotonic() + grace_s
        await finished(self._unary_tasks, grace_s)
        await finished(self._stream_tasks, min(stream_grace_s, end - time.monotonic()))
        for task in (*self._unary_tasks, *self._stream_tasks, *self._exempt_tasks):
            task.cancel()

    def wrap(self, path: str, handler: Handler, allowed: frozenset[Role], *, limited: bool = True) -> Handler:
        """The same RPC with everything around it. gRPC handles bytes: decoding is ours, after authentication."""
        method = Method(path, allowed, limited, handler, MethodMeter(path))
        if handler.request_streaming:
            if handler.response_streaming:
                return grpc.stream_stream_rpc_method_handler(self._streaming(method, handler.stream_stream))
            return grpc.stream_unary_rpc_method_handler(self._answering(method, handler.stream_unary))
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._streaming(method, handler.unary_stream))
        return grpc.unary_unary_rpc_method_handler(self._answering(method, handler.unary_unary))

    def _answering(self, method: Method, behaviour: Callable[..., Any]) -> Callable[[Any, Context], Awaitable[bytes]]:
        decode, encode = decoder(method), method.handler.response_serializer
        running = self._unary_tasks if method.limited else self._exempt_tasks

        async def answer(request: Any, context: Context) -> bytes:
            async def work() -> bytes:
                answered: bytes = encode(await behaviour(decode(request), context))
                return answered

            return await self._serve(method, context, running, lambda: self._within_deadline(work))

        return answer

    def _streaming(self, method: Method, behaviour: Callable[..., Any]) -> Callable[[Any, Context], Awaitable[None]]:
        decode, encode = decoder(method), method.handler.response_serializer
        running = self._stream_tasks if method.limited else self._exempt_tasks

        async def answer(request: Any, context: Context) -> None:
            async def work() -> None:
                # Closed here and not by the garbage collector: a cancel must run the handler's `finally` now.
                async with aclosing(behaviour(decode(request), context)) as answers:
                    async for one in answers:
                        await context.write(encode(one))

            await self._serve(method, context, running, work)

        return answer

    async def _serve(
        self, method: Method, context: Context, running: set[asyncio.Task[Any]], work: Callable[[], Awaitable[T]]
    ) -> T:
        """Error mapping and metrics around admission and handler."""
        started = time.perf_counter()
        code = grpc.StatusCode.OK
        method.meter.begin()
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        running.add(task)
        try:
            self._admit(method, context)
            return await work()
        except asyncio.CancelledError:
            if self._closed and not context.cancelled():
                code = grpc.StatusCode.UNAVAILABLE
                await abort(context, shutting_down())
            code = grpc.StatusCode.DEADLINE_EXCEEDED if call_context.remaining_s() == 0 else grpc.StatusCode.CANCELLED
            raise
        except NotImplementedError:
            code = grpc.StatusCode.UNIMPLEMENTED
            await context.abort(code, f"{method.path} is not implemented here")
        except Exception as error:
            known = explain(error, method)
            code = code_of(known)
            await abort(context, known)
        finally:
            running.discard(task)
            method.meter.end(code.name, time.perf_counter() - started)

    def _admit(self, method: Method, context: Context) -> None:
        """Request id, authentication, deadline, limits: raises what refuses the call, else fills the call's context."""
        authorization = offered_id = None
        for key, value in context.invocation_metadata() or ():
            if key == AUTHORIZATION:
                authorization = value
            elif key == REQUEST_ID:
                offered_id = value
        request_id.set(accept_request_id(offered_id))
        self._authenticate(method, authorization)
        remaining = context.time_remaining()
        call_context.deadline.set(None if remaining is None else time.monotonic() + remaining)
        if method.limited:
            self._check_limits()

    def _check_limits(self) -> None:
        if self._closed:
            raise shutting_down()
        if len(self._unary_tasks) + len(self._stream_tasks) > self._limits.max_concurrent_calls:
            raise too_many_calls(self._limits.max_concurrent_calls)

    def _authenticate(self, method: Method, authorization: str | bytes | None) -> None:
        if Role.ANYONE in method.allowed:
            return
        caller = self._identities.identify(authorization)
        authorise(caller, method.allowed, method.path)
        call_context.caller.set(caller)

    async def _within_deadline(self, work: Callable[[], Awaitable[T]]) -> T:
        """gRPC itself cancels a call at the caller's deadline; a unary call without one gets ours."""
        if call_context.deadline.get() is not None:
            return await work()
        call_context.deadline.set(time.monotonic() + self._limits.unary_deadline_s)
        try:
            async with asyncio.timeout(self._limits.unary_deadline_s) as timeout:
                return await work()
        except TimeoutError:
            if timeout.expired():
                raise DeadlineExceeded("DEADLINE_EXCEEDED", "the call took longer than this server allows") from None
            raise


async def finished(tasks: set[asyncio.Task[Any]], timeout_s: float) -> None:
    """Returns when none of the tasks runs any more, or after `timeout_s`."""
    if tasks and timeout_s > 0:
        await asyncio.wait(tuple(tasks), timeout=timeout_s)


def decoder(method: Method) -> Callable[[Any], Any]:
    """Bytes to the request message, or a stream of the one to a stream of the other."""
    parse = method.handler.request_deserializer

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            raise InvalidArgument("MALFORMED_MESSAGE", f"the request of {method.path} is not a valid message") from None

    async def decode_stream(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield decode(data)

    return decode_stream if method.handler.request_streaming else decode


def explain(error: Exception, method: Method) -> PentimentoError:
    """The error to answer with. Defects are logged with their traceback, and their text goes no further."""
    if isinstance(error, ExceptionGroup):
        error = first_of(error)
    known = error if isinstance(error, PentimentoError) else unexpected()
    if isinstance(known, Internal):
        fields = {"method": method.path, **known.metadata}
        logger.error("call failed", exc_info=error, extra=fields)
    elif logger.isEnabledFor(logging.DEBUG):
        logger.debug("call refused", extra={"method": method.path, "code": code_of(known).name, "reason": known.reason})
    return known


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """What a task group failed with, when all of it is domain errors: the first. Otherwise the group."""
    ours, others = group.split(PentimentoError)
    while isinstance(ours, ExceptionGroup) and others is None:
        first = ours.exceptions[0]
        if not isinstance(first, ExceptionGroup):
            return first
        ours = first
    return group


async def abort(context: Context, error: PentimentoError) -> NoReturn:
    status = to_status(error)
    trailing = ((STATUS_DETAILS, status.SerializeToString()), (REQUEST_ID, request_id.get()))
    await context.abort(code_of(error), status.message, trailing)


def shutting_down() -> Unavailable:
    return Unavailable("SHUTTING_DOWN", "this server is stopping", retry_after_ms=RETRY_AFTER_MS)


def too_many_calls(limit: int) -> ResourceExhausted:
    return ResourceExhausted(
        "TOO_MANY_CALLS",
        f"this server already serves max_concurrent_calls = {limit} calls",
        retry_after_ms=RETRY_AFTER_MS,
    )
