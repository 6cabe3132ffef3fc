"""Pass every call to its handler and back through the kit's stages.

From the outside in: metrics → error mapping → deadline → authentication → shaping → limits → receiving → decoding →
handler. Handlers are wrapped when their service is added, not by gRPC's interceptors: calls need no lookup. For gRPC
each method takes a stream of requests: so a call is handled once its headers arrive, and no message of a rejected
caller is read.

A handler is `async def` (unary answer) or an async generator (stream of answers, serialised or not). It raises domain
errors, and is cancelled (asyncio.CancelledError) when the caller cancels or disconnects, or its deadline passes.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from pentimento.domain.errors import DeadlineExceeded, InvalidArgument, PermissionDenied, Unauthenticated
from pentimento.domain.tenants import Caller, Role
from pentimento.rpc import context as call_context
from pentimento.rpc.access import (
    DEFAULT_REQUEST_BYTES,
    SUBJECT_CHARACTERS,
    Access,
    authorise,
    is_audited,
    log_call,
    subject_of,
)
from pentimento.rpc.call_limits import CALLS, CallShaper, EdgeCalls, MethodMeter, Seats
from pentimento.rpc.callers import CallerCheck, any_names
from pentimento.rpc.context import AUTHORIZATION, REQUEST_ID, USER_AGENT
from pentimento.rpc.errors import answer_with, code_of, explain, shutting_down
from pentimento.rpc.intake import Intake
from pentimento.rpc.relay import CallTurns, is_relayed, relayed_peer
from pentimento.rpc.settings import BOUNDS, RpcServerSettings, ServerBounds
from pentimento.rpc.tokens import Identities, OpenDoor
from pentimento.telemetry.tracing import TRACEPARENT, TRACESTATE, CallSpan, accept_request_id, begin_call, request_id

T = TypeVar("T")
Tasks = set[asyncio.Task[Any]]
Context = grpc.aio.ServicerContext[Any, Any]
LAST_ANSWER_S = 3.0
# Calls without a token, of all peers and of one; calls through a unix socket are not counted.
OPEN_CALLS = 256
OPEN_CALLS_OF_A_PEER = 64
UNIX_PEER = "unix"
# gRPC sends no message of a call that ends with another status than OK.
NO_ANSWER = b""
# Calls of clients that begin a trace; others continue their caller's.
BEGINS_TRACE = frozenset(f"/pentimento.api.image.v1.ImageService/{name}" for name in ("Generate", "Replay", "Submit"))
# Counts as no token: a proxy in front may have validated another token than this server would.
SEVERAL_TOKENS = b""
# A grpc.RpcMethodHandler; its stub makes every attribute optional, where the two flags say which one is set.
Handler = Any


@dataclass(frozen=True)
class Method:
    """Describe one RPC: "/package.Service/Method", its allowed roles and largest request, whether the limit of calls
    applies, the callers by certificate, and the set of its running calls."""

    path: str
    allowed: frozenset[Role]
    callers: frozenset[str] | None
    limit_bytes: int
    needs_caller: bool
    limited: bool
    begins_trace: bool
    audited: bool
    running: Tasks
    meter: MethodMeter
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


class Call:
    """Track one running call; once admitted, `key` names its tenant, or its peer if it needs no tenant."""

    __slots__ = ("_held", "caller", "code", "key", "method", "peer", "span", "started_s", "subject", "task")

    def __init__(self, method: Method, peer: str) -> None:
        self.method = method
        self.peer = peer
        # Texts of an administrator's request, or why its certificate's names may not make the call.
        self.subject = ""
        self.code = "OK"
        self.caller: Caller | None = None
        self.key = ""
        self.span: CallSpan | None = None
        self._held: list[Callable[[str], None]] = []
        self.started_s = time.perf_counter()
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        method.running.add(self.task)
        method.meter.begin()

    def holds(self, give_back: Callable[[str], None]) -> None:
        """Call `give_back` with the key when the call ends."""
        self._held.append(give_back)

    def end(self) -> None:
        for give_back in self._held:
            give_back(self.key)
        self.method.running.discard(self.task)
        self.method.meter.end(self.code, time.perf_counter() - self.started_s, self.span.trace_id if self.span else "")
        if self.method.audited or self.subject:
            log_call(self.method.path, self.caller, host_of(self.peer), self.subject, self.code)
        if self.span is not None:
            self.span.end(self.code)


Receive = Callable[[Call, Context], Awaitable[Any]]


class Pipeline:
    """Wrap handlers, and track their running calls."""

    def __init__(
        self,
        identities: Identities,
        limits: RpcServerSettings,
        bounds: ServerBounds = BOUNDS,
        turns: CallTurns | None = None,
        check_names: CallerCheck = any_names,
    ) -> None:
        """Wrap handlers for these callers and limits. `turns` is notified of each relayed call that begins.
        `check_names` raises PermissionDenied for a call that its certificate may not make."""
        self._identities = identities
        self._turns = turns
        self._check_names = check_names
        self._bounds = bounds
        # Without a token file there is only one tenant, which shares with no other.
        self._shared = not isinstance(identities, OpenDoor)
        share = max(limits.max_concurrent_calls // 2, 1) if self._shared else limits.max_concurrent_calls
        self._seats = Seats(limits.max_concurrent_calls, share)
        self._shaper = CallShaper(limits.tenant_calls_per_s)
        self._open_seats = Seats(OPEN_CALLS, OPEN_CALLS_OF_A_PEER)
        self._largest_bytes = min(DEFAULT_REQUEST_BYTES, bounds.max_message_bytes)
        self._intake = self._make_intake()
        self._unary: Tasks = set()
        self._streams: Tasks = set()
        self._exempt: Tasks = set()
        self.edges = EdgeCalls()
        self._begun_count = 0
        self._closed = False

    async def close(self, grace_s: float, stream_grace_s: float) -> None:
        """Reject new calls, wait up to `grace_s` for unary ones and, within that, up to `stream_grace_s` for streams;
        the remaining calls are cancelled and answered UNAVAILABLE, and have `LAST_ANSWER_S` to send it."""
        self._closed = True
        # These calls have not begun, and need no wait.
        self._shaper.close()
        end = time.monotonic() + grace_s
        await finished(self._unary, grace_s)
        await finished(self._streams, min(stream_grace_s, end - time.monotonic()))
        left = {*self._unary, *self._streams, *self._exempt}
        for task in left:
            task.cancel()
        # Before the connections close: a caller that first reads their end never learns the reason.
        await finished(left, LAST_ANSWER_S)

    async def refuse_waiting(self, quiet_s: float, limit_s: float, are_to_come: Callable[[], bool]) -> None:
        """Return once no call has begun for `quiet_s`, or four times as long after one did, and none is to come; after
        `limit_s` at the latest. Calls that arrived before the close, and were not taken, begin during this time and so
        are rejected with a reason: the calls that remain when gRPC stops end as cancelled, without a reason."""
        end, first_count, before = time.monotonic() + limit_s, self._begun_count, -1
        while (self._begun_count != before or are_to_come()) and time.monotonic() < end:
            before = self._begun_count
            await asyncio.sleep(quiet_s if before == first_count else 4 * quiet_s)

    @property
    def activity(self) -> tuple[int, int]:
        """Return how many calls began so far, and how many are running: it changes with each start or end."""
        return self._begun_count, len(self._unary) + len(self._streams) + len(self._exempt)

    @property
    def running_count(self) -> int:
        """Return the running calls and streams, without those of the kit itself (health)."""
        return len(self._unary) + len(self._streams)

    @property
    def largest_request_bytes(self) -> int:
        """Return the largest request of the methods wrapped so far."""
        return self._largest_bytes

    def wrap(self, path: str, handler: Handler, access: Access, *, limited: bool) -> Handler:
        """Return the same RPC with all stages around it. gRPC handles bytes: the kit decodes, after authentication."""
        counted = self._streams if handler.response_streaming else self._unary
        method = Method(
            path,
            access.roles,
            access.callers,
            limit_bytes=min(access.max_request_bytes, self._bounds.max_message_bytes),
            needs_caller=Role.ANYONE not in access.roles,
            limited=limited,
            begins_trace=path in BEGINS_TRACE,
            audited=is_audited(path, access.roles),
            running=counted if limited else self._exempt,
            meter=CALLS.meter(path),
            decode=decoder(path, handler),
            encode=handler.response_serializer,
        )
        self._largest_bytes = max(self._largest_bytes, method.limit_bytes)
        self._intake = self._make_intake()
        request = self._messages if handler.request_streaming else self._message
        if handler.response_streaming:
            behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
            return grpc.stream_stream_rpc_method_handler(self._streaming(method, request, behaviour))
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        return grpc.stream_unary_rpc_method_handler(self._answering(method, request, behaviour))

    def _make_intake(self) -> Intake:
        bounds = self._bounds
        return Intake(self._largest_bytes, bounds.max_receiving_bytes, bounds.receive_timeout_s, shared=self._shared)

    async def _message(self, call: Call, context: Context) -> Any:
        method = call.method
        data = await self._intake.one(context, call.key, method.limit_bytes, may_settle=method.needs_caller)
        return method.decode(data)

    async def _messages(self, call: Call, context: Context) -> AsyncIterator[Any]:
        method = call.method
        trusted = self._shared and call.caller is not None and Role.SERVICE in call.caller.roles
        if not trusted:
            self._intake.keep_place(call.key)
            call.holds(self._intake.leave_place)
        return decoded(method.decode, self._intake.many(context, method.limit_bytes))

    def _answering(
        self, method: Method, receive: Receive, behaviour: Callable[..., Any]
    ) -> Callable[[Any, Context], Awaitable[bytes]]:
        async def answer(_: object, context: Context) -> bytes:
            call = self._begin(method, context)
            try:
                await self._admit(call, context)
                request = await receive(call, context)
                if method.audited:
                    call.subject = subject_of(request)
                answering = behaviour(request, context)
                del request
                if call_context.deadline.get() is None:
                    answering = self._within_our_deadline(answering)
                return method.encode(await answering)
            except BaseException as error:
                if not self._answers(call, context, error):
                    raise
                return NO_ANSWER
            finally:
                call.end()

        return answer

    def _streaming(
        self, method: Method, receive: Receive, behaviour: Callable[..., Any]
    ) -> Callable[[Any, Context], Awaitable[None]]:
        async def answer(_: object, context: Context) -> None:
            call = self._begin(method, context)
            try:
                await self._admit(call, context)
                # Closed here and not by the garbage collector: a cancel must run the handler's `finally` now.
                async with aclosing(behaviour(await receive(call, context), context)) as answers:
                    async for one in answers:
                        await context.write(one if isinstance(one, bytes) else method.encode(one))
            except BaseException as error:
                if not self._answers(call, context, error):
                    raise
            finally:
                call.end()

        return answer

    def _begin(self, method: Method, context: Context) -> Call:
        self._begun_count += 1
        if self._turns is not None and is_relayed(context.peer()):
            self._turns.taken()
        return Call(method, context.peer())

    async def _admit(self, call: Call, context: Context) -> None:
        """Check request id, token, deadline, rate and limits: raise the rejection, else fill the call's context."""
        authorization = offered_id = agent = None
        carried: dict[str, str] = {}
        for key, value in context.invocation_metadata() or ():
            if key == AUTHORIZATION:
                authorization = value if authorization is None else SEVERAL_TOKENS
            elif key == REQUEST_ID:
                offered_id = value
            elif key == USER_AGENT and call.method.needs_caller:
                agent = value
            elif key in (TRACEPARENT, TRACESTATE) and isinstance(value, str):
                carried[key] = value
        request_id.set(accept_request_id(offered_id))
        call.span = begin_call(call.method.path[1:], carried, begins_trace=call.method.begins_trace)
        remaining_s = context.time_remaining()
        if remaining_s is not None:
            call_context.deadline.set(time.monotonic() + remaining_s)
        if call.method.needs_caller:
            await self._identify(call, context, authorization)
        self._seat(call, context)
        self.edges.begin(agent, call.holds)

    async def _identify(self, call: Call, context: Context, authorization: Any) -> None:
        """Shape a stranger's rejections by address, as a tenant's calls are by tenant. Processes of the suite call one
        another without a rate limit."""
        try:
            self._check_names(context, call.method.path, call.method.callers)
            call.caller = self._identities.identify(authorization)
            call.key = authorise(call.caller, call.method.allowed, call.method.path).tenant
        except Unauthenticated:
            await self._shaper.begin(f"peer {host_of(context.peer())}")
            raise
        except PermissionDenied as error:
            if call.caller is None:
                call.subject = f"names={error.metadata['names']}"[:SUBJECT_CHARACTERS]
            # Known by its token: rejections of strangers at the same address do not delay it.
            await self._shaper.begin(f"tenant {call.caller.tenant}" if call.caller else f"peer {host_of(call.peer)}")
            raise
        call_context.caller.set(call.caller)
        if self._shared and call.caller is not None and Role.SERVICE not in call.caller.roles:
            await self._shaper.begin(f"tenant {call.key}")

    def _seat(self, call: Call, context: Context) -> None:
        if call.method.limited and self._closed:
            raise shutting_down()
        seats: Seats | None = self._seats
        if not call.method.needs_caller:
            call.key = host_of(context.peer())
            seats = self._open_seats if call.key != UNIX_PEER else None
        if seats is not None:
            seats.take(call.key)
            call.holds(seats.leave)

    async def _within_our_deadline(self, answering: Awaitable[T]) -> T:
        """Apply the server's deadline to a unary call without one; gRPC itself cancels a call at the caller's
        deadline."""
        deadline_s = self._bounds.unary_deadline_s
        call_context.deadline.set(time.monotonic() + deadline_s)
        try:
            async with asyncio.timeout(deadline_s) as timeout:
                return await answering
        except TimeoutError:
            if timeout.expired():
                raise DeadlineExceeded("DEADLINE_EXCEEDED", "the call took longer than this server allows") from None
            raise

    def _answers(self, call: Call, context: Context, error: BaseException) -> bool:
        """Return whether the call ends with the error's status; a cancel or an exit is not answered. The catching code
        raises it again: raised here it would refer to itself by this frame."""
        if isinstance(error, asyncio.CancelledError):
            if self._closed and not context.cancelled():
                call.code = grpc.StatusCode.UNAVAILABLE.name
                answer_with(context, shutting_down())
                return True
            call.code = call_context.cancellation_code()
            return False
        if isinstance(error, NotImplementedError):
            call.code = grpc.StatusCode.UNIMPLEMENTED.name
            context.set_code(grpc.StatusCode.UNIMPLEMENTED)
            context.set_details(f"{call.method.path} is not implemented here")
            return True
        if not isinstance(error, Exception):
            return False
        known = explain(error, call.method.path)
        call.code = code_of(known).name
        answer_with(context, known)
        return True


async def finished(tasks: Tasks, timeout_s: float) -> None:
    """Return when all tasks have ended, or after `timeout_s`."""
    if tasks and timeout_s > 0:
        await asyncio.wait(tuple(tasks), timeout=timeout_s)


def host_of(peer: str) -> str:
    """Return the address of "ipv4:1.2.3.4:5" without its port, relayed or not; "unix" for any other Unix socket."""
    peer = relayed_peer(peer)
    return UNIX_PEER if peer.startswith(UNIX_PEER) else peer.rpartition(":")[0]


def decoder(path: str, handler: Handler) -> Callable[[bytes], Any]:
    """Return the decoder from bytes to the request message."""
    parse = handler.request_deserializer

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            raise InvalidArgument("MALFORMED_MESSAGE", f"the request of {path} is not a valid message") from None

    return decode


async def decoded(decode: Callable[[bytes], T], messages: AsyncGenerator[bytes, None]) -> AsyncIterator[T]:
    async with aclosing(messages):
        async for data in messages:
            yield decode(data)
