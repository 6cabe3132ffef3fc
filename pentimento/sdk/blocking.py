"""The public API for programs without asyncio: the asyncio client on its own thread."""

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from pentimento.clients.retries import RetryPolicy
from pentimento.domain.adapters import Adapter
from pentimento.domain.image_request import (
    Accepted,
    Explanation,
    GenerateEvent,
    ImageRequest,
    ModelInfo,
    PinnedImage,
    ReplayRequest,
    RequestStatus,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestSummary, ResultUrl
from pentimento.domain.requests import RequestState
from pentimento.sdk.client import AsyncClient
from pentimento.sdk.generated_image import GeneratedImage
from pentimento.sdk.image_set import ImageSet

T = TypeVar("T")


class Client:
    """`AsyncClient` with blocking methods; threads may share it.

    An interrupt (Ctrl-C) cancels the request. The interpreter closes clients at its exit. Like gRPC, a client does not
    survive a fork: a process forked after the first client cannot use any (RuntimeError); a spawned one can."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        tls_ca_file: str | Path | None = None,
        tls_client_cert_file: str | Path | None = None,
        tls_client_key_file: str | Path | None = None,
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
            self._client = self._call(
                self._open(
                    address,
                    token=token,
                    tls_ca_file=tls_ca_file,
                    tls_client_cert_file=tls_client_cert_file,
                    tls_client_key_file=tls_client_key_file,
                    retries=retries,
                )
            )
        except BaseException:
            self._end()
            raise

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

    def generate(self, request: ImageRequest, *, idempotency_key: str = "") -> GeneratedImage:
        """Return the finished image. An interrupt cancels the request."""
        return self._call(self._client.generate(request, idempotency_key=idempotency_key))

    def generate_all(self, request: ImageRequest, *, idempotency_key: str = "") -> ImageSet:
        """Return the finished images of a request for several; like `AsyncClient.generate_all`."""
        return self._call(self._client.generate_all(request, idempotency_key=idempotency_key))

    def stream(
        self, request: ImageRequest, *, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> Generator[GenerateEvent, None, None]:
        """Yield the events of `AsyncClient.stream`. Leaving the loop early cancels the request."""
        return self._events(
            self._client.stream(request, idempotency_key=idempotency_key, preview_interval_steps=preview_interval_steps)
        )

    def replay(
        self,
        request_id: str,
        *,
        inputs: Mapping[str, bytes] | None = None,
        deadline_ms: int | None = None,
        idempotency_key: str = "",
    ) -> GeneratedImage:
        """Return the image of a completed request, generated again; like `AsyncClient.replay`."""
        return self._call(
            self._client.replay(request_id, inputs=inputs, deadline_ms=deadline_ms, idempotency_key=idempotency_key)
        )

    def replay_stream(
        self, request: ReplayRequest, *, idempotency_key: str = ""
    ) -> Generator[GenerateEvent, None, None]:
        """Yield the events of a replay, like `stream`."""
        return self._events(self._client.replay_stream(request, idempotency_key=idempotency_key))

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

    def submit(self, request: ImageRequest, *, idempotency_key: str = "", webhook_url: str = "") -> Accepted:
        """Submit the request as a job, which continues without this client; like `AsyncClient.submit`."""
        return self._call(self._client.submit(request, idempotency_key=idempotency_key, webhook_url=webhook_url))

    def attach(self, request_id: str) -> Generator[GenerateEvent, None, None]:
        """Yield the events of an earlier request, like `stream`. Leaving the loop early cancels no job."""
        return self._events(self._client.attach(request_id))

    def wait(self, request_id: str) -> GeneratedImage:
        """Wait for an earlier request and return its image. An interrupt cancels no job."""
        return self._call(self._client.wait(request_id))

    def wait_all(self, request_id: str) -> ImageSet:
        """Wait for an earlier request and return its images; like `AsyncClient.wait_all`."""
        return self._call(self._client.wait_all(request_id))

    def result(self, request_id: str) -> GeneratedImage:
        """Return the image of a completed request without waiting. FailedPrecondition NOT_COMPLETED for any other."""
        return self._call(self._client.result(request_id))

    def list_requests(self, query: RequestQuery | None = None) -> RequestPage:
        """Return a page of the tenant's requests, newest first."""
        return self._call(self._client.list_requests(query))

    def jobs(self, *states: RequestState) -> Generator[RequestSummary, None, None]:
        """Yield the tenant's jobs, newest first: those in `states`, or all."""
        return self._events(self._client.jobs(*states))

    def result_url(self, request_id: str, *, expires_in_ms: int | None = None) -> ResultUrl:
        """Return a URL of an image that expires; like `AsyncClient.result_url`."""
        return self._call(self._client.result_url(request_id, expires_in_ms=expires_in_ms))

    def webhook_key(self) -> str:
        """Return the key that signs this tenant's webhooks (Standard Webhooks, whsec_…)."""
        return self._call(self._client.webhook_key())

    def pin(self, request_id: str, duration_ms: int) -> PinnedImage:
        """Keep the start of a completed request's image for a time from now; like `AsyncClient.pin`."""
        return self._call(self._client.pin(request_id, duration_ms))

    def unpin(self, request_id: str) -> None:
        """End the pin of a request; without one do nothing."""
        self._call(self._client.unpin(request_id))

    def cancel(self, request_id: str) -> RequestState:
        """Cancel a request within one denoising step, and return its state afterwards."""
        return self._call(self._client.cancel(request_id))

    def get_request(self, request_id: str, *, omit_image: bool = False) -> RequestStatus:
        """Return a request's state, with its image if it is completed. NotFound for an unknown request or another
        tenant's."""
        return self._call(self._client.get_request(request_id, omit_image=omit_image))

    def explain(self, request: ImageRequest, *, neighbour_count: int = 0) -> Explanation:
        """Return the route that `generate` would take now, and up to 50 of the cache's nearest entries."""
        return self._call(self._client.explain(request, neighbour_count=neighbour_count))

    def list_models(self) -> tuple[ModelInfo, ...]:
        """Return the served models with their limits."""
        return self._call(self._client.list_models())

    def list_adapters(self) -> tuple[Adapter, ...]:
        """Return the LoRAs and ControlNets that a request may name, with the models that they fit."""
        return self._call(self._client.list_adapters())

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
