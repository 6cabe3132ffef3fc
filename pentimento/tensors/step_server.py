"""Answer the steps of a stream: those of its messages, and those of its line between processes of one host. A failed
step ends the stream."""

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError, ResourceExhausted
from pentimento.tensors.lines import LineListener
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, receive_all
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import PackedTensors, TensorSender, open_sender
from pentimento.tensors.step_lines import AnsweringLine, LinedLatents, make_answering_line
from pentimento.wire.tensors import Binding, WireTensor

M = TypeVar("M")
T = TypeVar("T")
# Takes a step's tensors so far, by layer and in order, and the sizes in bytes of the tensors that follow.
Deliver = Callable[[Sequence[tuple[str, Any]], Sequence[int]], T]
Packed = tuple[int, PackedTensors]


@dataclass(frozen=True)
class StepService:
    """Describe the steps of one opened stream: at most `step_count`, each with `latents`, and answers of tensors of
    `answer_sizes` bytes. The bindings of `latents` and of a whole `answer` are those of step 0.

    `submit` queues a step (index, timestep, latents, deliver, in parts), on one thread at a time; `deliver` takes the
    answer on the computing thread, and its result settles the future. `outgoing` makes a tensor to send.

    Steps of a line are read by `listener`; at most `most_under_way` run at the same time, and `submit` may
    deliver them in parts. `shares_little`: share memory for small answers too. `keeps_regions`: keep the memory for
    later streams.

    `opened` makes the answer to the opening from the region and the line for the other end, `answered` a step's answer
    from its index and tensors; `chunk_field` is the number of the field of their chunks."""

    step_count: int
    latents: ExpectedTensor
    answer: Binding
    answer_sizes: Sequence[int]
    submit: Callable[[int, float, WireTensor, Deliver[Any], bool], "Future[Any]"]
    outgoing: Callable[[Any, Binding], OutgoingTensor]
    listener: LineListener
    most_under_way: int
    opened: Callable[[pb.SharedMemoryRegion | None, pb.StepLine | None], Any]
    answered: Callable[[int, Sequence[pb.Tensor]], Any]
    chunk_field: int
    shares_little: bool = False
    keeps_regions: bool = False


async def serve_steps(
    requests: AsyncIterator[Any],
    offer: pb.TensorTransportOffer,
    directory: RegionDirectory | None,
    service: StepService,
) -> AsyncGenerator[Any, None]:
    """Yield the answer to the opening, then that to each step, until the caller sends no more. A step of the stream is
    computed while the previous one's answer is being sent. Raises the error of a step as soon as it fails."""
    opening = partial(open_sender, offer, directory, service.answer_sizes, little=service.shares_little)
    # Touching all pages takes milliseconds for a large region: not on the event loop.
    sender, region = await asyncio.to_thread(opening)
    steps = _OpenSteps(service, sender)
    try:
        yield service.opened(region, steps.open_line(directory))
        async with aclosing(one_ahead(steps.answers(requests))) as answers:
            async for step_index, packed in answers:
                yield service.answered(step_index, packed.tensors)
                for chunk in packed.chunks:
                    # As bytes, which the rpc kit sends unchanged.
                    yield chunk.framed(service.chunk_field)
    finally:
        steps.close()
        in_order = directory is not None and service.keeps_regions and not steps.under_way_count
        sender.close(directory.kept if directory is not None and in_order else None)


class _OpenSteps:
    """Hold the steps of one stream. On the event loop, except that the listener's thread takes the steps of a line."""

    def __init__(self, service: StepService, sender: TensorSender) -> None:
        self._service = service
        self._sender = sender
        self._receiver = TensorReceiver()
        self._line: AnsweringLine | None = None
        self._last_step = -1
        self._submitted: set[Future[Any]] = set()
        self._loop = asyncio.get_running_loop()
        # Gets the error of a step of the line.
        self._failed: asyncio.Future[None] = self._loop.create_future()
        # No step is taken after `close`.
        self._taking = threading.Lock()
        self._closed = False

    @property
    def under_way_count(self) -> int:
        """Return the number of steps that wait or are being computed or written; on any thread."""
        return sum(not future.done() for future in self._submitted)

    def open_line(self, directory: RegionDirectory | None) -> pb.StepLine | None:
        """Return the line for the other end, None if there is none."""
        self._line, told = make_answering_line(directory, self._sender, self._latents, self._answer)
        if self._line is not None:
            self._service.listener.listen(self._line.fileno(), partial(self._readable, self._line))
        return told

    async def answers(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Packed, None]:
        """Yield the packed answers to the steps of the stream's messages."""
        # Without a line there is no other error to follow, and each message costs less.
        reading: AbstractAsyncContextManager[AsyncIterator[Any]] = nullcontext(requests)
        if self._line is not None:
            reading = aclosing(messages_until(requests, self._failed))
        async with reading as followed:
            async for message in followed:
                match message.WhichOneof("message"):
                    case "step":
                        yield await self._answered(message.step, followed)
                    case "ack":
                        self._sender.acknowledged(message.ack)
                    case "region_opened":
                        self._sender.region_opened(message.region_opened)
                    case other:
                        wanted = "must be step, ack or region_opened"
                        raise InvalidArgument.of("message", f"{wanted}, got {other or 'none'}")

    def close(self) -> None:
        """Take no further steps."""
        if self._line is not None:
            self._service.listener.forget(self._line.fileno())
            with self._taking:
                self._closed = True
                self._line.close()
        self._failed.cancel()

    def _latents(self, step_index: int) -> ExpectedTensor:
        latents = self._service.latents
        return replace(latents, binding=replace(latents.binding, step_index=step_index))

    def _answer(self, step_index: int) -> Binding:
        return replace(self._service.answer, step_index=step_index)

    def _begin(self, step_index: int, timestep: float) -> None:
        """Validate a step before its latents are read. Raises Aborted (STALE_FRAME) for a step that is not after the
        last one, InvalidArgument for one beyond the schedule, and for a timestep that is not finite."""
        if step_index <= self._last_step:
            raise Aborted("STALE_FRAME", f"step {step_index} came after step {self._last_step}")
        if step_index >= self._service.step_count:
            limit = f"must be below {self._service.step_count}"
            raise InvalidArgument.of("step.step_index", f"{limit}, got {step_index}")
        if not math.isfinite(timestep):
            raise InvalidArgument.of("step.timestep", f"must be finite, got {timestep}")
        self._last_step = step_index

    def _submit(
        self, step_index: int, timestep: float, latents: WireTensor, deliver: Deliver[T], in_parts: bool
    ) -> "Future[T]":
        future: Future[T] = self._service.submit(step_index, timestep, latents, deliver, in_parts)
        self._submitted = {future, *(one for one in self._submitted if not one.done())}
        return future

    async def _answered(self, step: Any, requests: AsyncIterator[Any]) -> Packed:
        """Compute a step of the stream."""
        step_index: int = step.step_index
        self._begin(step_index, step.timestep)
        found = await receive_all(self._receiver, [step.latent], [self._latents(step_index)], requests)

        def pack(named: Sequence[tuple[str, Any]], awaited_bytes: Sequence[int]) -> PackedTensors:
            answer = self._answer(step_index)
            bound = [self._service.outgoing(tensor, replace(answer, layer=layer)) for layer, tensor in named]
            return self._sender.pack(bound)

        future = self._submit(step_index, step.timestep, found.tensors[0], pack, in_parts=False)
        return step_index, await asyncio.wrap_future(future)

    def _readable(self, line: AnsweringLine) -> None:
        with self._taking:
            if self._closed:
                return
            try:
                for step in line.read(self._begin_lined):
                    self._take_lined(line, step)
            except PentimentoError as error:
                self._fail(error)

    def _begin_lined(self, step_index: int, timestep: float) -> None:
        most = self._service.most_under_way
        if self.under_way_count >= most:
            raise ResourceExhausted("NO_CREDIT", f"at most {most} steps may be under way")
        self._begin(step_index, timestep)

    def _take_lined(self, line: AnsweringLine, step: LinedLatents) -> None:
        """Compute a step of the line, and answer it there."""

        def answer(named: Sequence[tuple[str, Any]], awaited_bytes: Sequence[int]) -> None:
            binding = self._answer(step.step_index)
            tensors = [self._service.outgoing(tensor, binding) for _, tensor in named]
            line.answer(step.step_index, tensors, awaited_bytes)

        future = self._submit(step.step_index, step.timestep, step.latents, answer, in_parts=True)
        future.add_done_callback(self._settled)

    def _settled(self, future: "Future[Any]") -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, PentimentoError):
            self._fail(error)

    def _fail(self, error: PentimentoError) -> None:
        """End the stream with the error of a step of the line; on any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: PentimentoError) -> None:
        if self._line is not None and not self._failed.done():
            self._service.listener.forget(self._line.fileno())
            self._failed.set_exception(error)


async def opening_of(messages: AsyncIterator[Any]) -> Any:
    """Return the opening of a stream. Raises InvalidArgument if another message comes first."""
    first = await anext(aiter(messages), None)
    if first is None or first.WhichOneof("message") != "open":
        raise InvalidArgument.of("message", "must be open: it is the first of its stream")
    return first.open


async def messages_until(messages: AsyncIterator[M], failed: "asyncio.Future[None]") -> AsyncGenerator[M, None]:
    """Yield a stream's messages until it ends. Raises the exception of `failed` once set, without waiting for the next
    message."""
    upcoming: asyncio.Task[M | None] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(_next(messages))
            await asyncio.wait((upcoming, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            message = await upcoming
            if message is None:
                return
            yield message
    finally:
        if upcoming is not None:
            upcoming.cancel()


async def _next(messages: AsyncIterator[M]) -> M | None:
    return await anext(aiter(messages), None)


async def one_ahead(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of `source`, which prepares each next item before the consumer is done with this one, and is
    closed at the end. Its errors are raised after the items before."""
    upcoming = asyncio.create_task(anext(source, None))
    try:
        while (item := await upcoming) is not None:
            upcoming = asyncio.create_task(anext(source, None))
            yield item
    finally:
        upcoming.cancel()
        # Errors of the source after the consumer has left are dropped.
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await upcoming
        await source.aclose()
