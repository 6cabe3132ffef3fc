"""The public API for programs without asyncio: the asyncio client on its own thread."""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from pentimento.clients.retries import RetryPolicy
from pentimento.sdk.client import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Return the blocking form of a method: it returns the answer."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method(self._client, *args, **kwargs))

    return call


def _streaming(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Client", P], Generator[T, None, None]]:
    """Return the blocking form of a method that yields. Leaving the loop early closes the asyncio generator."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._events(method(self._client, *args, **kwargs))

    return call


class Client:
    """`AsyncClient` with blocking methods; threads may share it. Methods that yield return generators.

    An interrupt (Ctrl-C) cancels the request, as does leaving a generator of `stream` early. The interpreter closes
    clients at its exit. Like gRPC, a client does not survive a fork: a process forked after the first client cannot use
    any (RuntimeError); a spawned one can."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        tls_dir: str | Path | None = None,
        retries: RetryPolicy | None = None,
    ) -> None:
        """Connect; arguments as for `AsyncClient`."""
        self._loop = asyncio.new_event_loop()
        # Whether no work starts any more, and whether the loop handles no callbacks any more.
        self._closed = self._stopped = False
        self._why_closed = "the client is closed"
        self._ending: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="pentimento-client", daemon=True)
        self._thread.start()
        _OPEN.add(self)
        try:
            self._client = self._call(self._open(address, token=token, tls_dir=tls_dir, retries=retries))
        except BaseException:
            self._end()
            raise

    generate = _blocking(AsyncClient.generate)
    generate_all = _blocking(AsyncClient.generate_all)
    stream = _streaming(AsyncClient.stream)
    replay = _blocking(AsyncClient.replay)
    replay_stream = _streaming(AsyncClient.replay_stream)
    submit = _blocking(AsyncClient.submit)
    attach = _streaming(AsyncClient.attach)
    wait = _blocking(AsyncClient.wait)
    wait_all = _blocking(AsyncClient.wait_all)
    result = _blocking(AsyncClient.result)
    list_requests = _blocking(AsyncClient.list_requests)
    jobs = _streaming(AsyncClient.jobs)
    result_url = _blocking(AsyncClient.result_url)
    webhook_key = _blocking(AsyncClient.webhook_key)
    pin = _blocking(AsyncClient.pin)
    unpin = _blocking(AsyncClient.unpin)
    cancel = _blocking(AsyncClient.cancel)
    get_request = _blocking(AsyncClient.get_request)
    explain = _blocking(AsyncClient.explain)
    list_models = _blocking(AsyncClient.list_models)
    list_adapters = _blocking(AsyncClient.list_adapters)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end the thread of the event loop."""
        if self._stopped or self._loop.is_closed():
            return
        self._call(self._finish())
        self._end()

    def _run(self) -> None:
        """Run the loop until it is stopped, then handle late calls, which get an error."""
        self._loop.run_forever()
        self._closed = self._stopped = True
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def _end(self) -> None:
        _OPEN.discard(self)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _events(self, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        try:
            while (event := self._call(next_or_none(events))) is not None:
                yield event
        finally:
            # A closed client has ended its streams, so that closing one does nothing.
            if not self._closed:
                self._let_go(events)

    def _let_go(self, events: AsyncGenerator[T, None]) -> None:
        if threading.current_thread() is not self._thread:
            self._call(events.aclose())
            return
        # The garbage collector closes an abandoned generator on any thread; the loop's own thread must not wait.
        ending = self._loop.create_task(events.aclose())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _open(self, address: str, **options: Any) -> AsyncClient:
        # On the loop's thread: a channel belongs to the loop that it was created on.
        return AsyncClient(address, **options)

    async def _finish(self) -> None:
        """Close the channel and wait for the tasks of its calls, which must not find the loop closed."""
        self._closed = True
        await self._client.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop's thread. An interrupt at any point cancels the work and waits for its end."""
        begun: list[asyncio.Task[T]] = []
        # An interrupt may leave locks of `threading` and futures inconsistent; this queue is a single call into C.
        ended: SimpleQueue[None] = SimpleQueue()

        def begin() -> None:
            if self._closed:
                ended.put(None)
                return
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(lambda _: ended.put(None))

        def cancel() -> None:
            if begun and not begun[0].done():
                begun[0].cancel()
            else:
                ended.put(None)

        try:
            self._hand_over(begin, ended)
        except KeyboardInterrupt:
            self._hand_over(cancel, ended)
            raise
        if not begun:
            work.close()
            raise RuntimeError(self._why_closed)
        try:
            return begun[0].result()
        except asyncio.CancelledError as error:
            raise RuntimeError("the client was closed during the call") from error

    def _hand_over(self, act: Callable[[], None], ended: "SimpleQueue[None]") -> None:
        """Run `act` on the loop's thread and wait until it signals `ended`; do nothing after the loop stopped."""
        # A closed loop raises.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)
        # After `_stopped` is set the loop runs its callbacks once more, so earlier ones still signal.
        if not self._stopped:
            ended.get()


# Clients with a running thread. At the interpreter's exit and in a fork these threads are missing: a call or the close
# of a stream would wait for ever.
_OPEN: set[Client] = set()


@atexit.register
def _close_all() -> None:
    for client in tuple(_OPEN):
        # Another thread may be closing it.
        with suppress(RuntimeError):
            client.close()


def _leave_all_to_the_parent() -> None:
    for client in _OPEN:
        client._closed = client._stopped = True
        client._why_closed = "the client belongs to the parent process of a fork"
    _OPEN.clear()


os.register_at_fork(after_in_child=_leave_all_to_the_parent)


async def next_or_none(events: AsyncGenerator[T, None]) -> T | None:
    """Return the next event; None at the end of the stream."""
    return await anext(events, None)
