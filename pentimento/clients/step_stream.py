"""Ask another process for the answers to denoising steps: one stream, with a line between processes of one host."""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

import grpc.aio

from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.calls import AnsweredStream, judging_answers
from pentimento.domain.errors import Aborted, PentimentoError, Unavailable
from pentimento.tensors.lines import LineListener, LoopListener
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, ReceivedTensors, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import PackedTensors, TensorSender
from pentimento.tensors.step_lines import AskingLine, open_asking_line
from pentimento.wire.tensors import Binding

logger = logging.getLogger(__name__)

# Interval of the check for overdue answers.
LOOK_S = 1.0


class StepStream(ABC):
    """Send the latents of steps and receive their answers, in the order of the steps; a step may be sent while the
    previous one is running. `ask` and `take` never block, and may be called on any thread, one at a time; all other
    methods only on the event loop.

    Between processes of one host steps use a line if both ends could open it, which `listener` reads, by default the
    event loop: with another listener a step does not touch the event loop. Other steps are messages of the stream.
    Errors arrive on the stream itself; a step without an answer for `silent_after_s` is an error too. A subclass names
    the other end, its errors, and the layer of answers by a line."""

    message: ClassVar[Callable[..., Any]]
    other_end: ClassVar[str]
    gone_reason: ClassVar[str]
    silent_reason: ClassVar[str]
    answer_field: ClassVar[str]
    answer_layer: ClassVar[str]
    silent_after_s: ClassVar[float]

    def __init__(
        self,
        call: Any,
        request: Any,
        stream_epoch: int,
        directory: RegionDirectory | None,
        lined: bool = True,
        listener: LineListener | None = None,
    ) -> None:
        """Wrap a call. `request` has the attempt, the `tensors` of the opening by field of the contract, and the digest
        of the model, which is in the binding of every tensor that is sent."""
        self._stream: AnsweredStream[Any, Any] = AnsweredStream(call, self.gone_reason, self.other_end)
        self._request = request
        self._answer_digest: str = request.model_digest
        self._epoch = stream_epoch
        self._directory = directory
        self._may_be_lined = lined
        self._loop = asyncio.get_running_loop()
        self._hears_on_loop = listener is None
        self._listener = listener or LoopListener()
        self._sender = TensorSender()
        self._receiver = TensorReceiver()
        self._line: AskingLine | None = None
        # One thread reads the line at a time, none while it is being closed.
        self._reading = threading.Lock()
        # The latents that were sent last.
        self._latents: OutgoingTensor | None = None
        # Messages of the steps that go by the stream, each with an event for the end of its transfer.
        self._outbox: asyncio.Queue[tuple[Iterable[Any], threading.Event]] = asyncio.Queue()
        # Answers, whole or in part, and the times of the last sign of steps without a whole answer, in their order.
        self._found: dict[int, ReceivedTensors] = {}
        self._asked_at: dict[int, float] = {}
        self._error: PentimentoError | None = None
        self._ended = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        # Called on the event loop when an answer may have arrived, except from a line with another listener.
        self.heard: Callable[[], None] = lambda: None

    @property
    def lined(self) -> bool:
        """Return whether steps are sent by a line."""
        return self._line is not None

    async def open_within(self, timeout_s: float) -> None:
        """Open the stream, or close it. Raises the other end's error; Unavailable after a timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.open()
        except TimeoutError:
            self.close()
            raise Unavailable(self.silent_reason, f"{self.other_end} did not open a stream in time") from None
        except BaseException:
            self.close()
            raise

    async def open(self) -> None:
        """Open the stream. Raises the other end's error; Aborted (STALE_FRAME) for an answer to another opening."""
        named = self._request.tensors()
        bound = [replace(tensor, binding=self._binding(0, name, self._request.model_digest)) for name, tensor in named]
        packed = self._sender.pack(bound)
        names = [name for name, _ in named]
        await self._send(self._with_chunks(self._opening(dict(zip(names, packed.tensors, strict=True))), packed))
        opened = (await self._stream.read("opened")).opened
        if opened.stream_epoch != self._epoch:
            raise Aborted("STALE_FRAME", f"the stream was opened for epoch {opened.stream_epoch}, not {self._epoch}")
        self._accept(opened)
        region = opened.region if opened.HasField("region") else None
        # Touching all pages takes milliseconds for a large region: not on the event loop.
        self._receiver, told = await asyncio.to_thread(open_receiver, region, self._directory)
        if told is not None:
            await self._stream.send(self.message(region_opened=told))
            if told.opened and opened.HasField("line") and self._may_be_lined:
                self._line = self._opened_line(opened.line)
        if self._line is not None:
            self._listener.listen(self._line.fileno(), self._hear)
        for part in (self._write, self._read, self._notice_silence):
            self._tasks.append(asyncio.create_task(self._ending(part), name="step-stream"))

    def ask(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> threading.Event:
        """Send a step's latents, and release the memory of answers to steps before `keeps_from`. Return an event that
        is set once the step has left; `end` returns the error of a step that could not leave."""
        self._latents = latents
        given_back = self._given_back(step_index, keeps_from)
        self._asked_at[step_index] = time.monotonic()
        sent = threading.Event()
        if self._line is None:
            packed = self._sender.pack([replace(latents, binding=self._latent_binding(step_index))])
            step = self._with_chunks(self._step(step_index, timestep, packed.tensors[0]), packed)
            messages = chain((self.message(ack=ack) for ack in given_back), step)
            self._loop.call_soon_threadsafe(self._outbox.put_nowait, (messages, sent))
            return sent
        try:
            self._line.ask(step_index, timestep, latents, given_back)
            sent.set()
        except PentimentoError as error:
            self._lose(error)
        return sent

    def take(self, step_index: int) -> ReceivedTensors | None:
        """Return the part of a step's answer that has arrived; None before, and once it is released. In shared memory
        it is valid until then."""
        if self._line is not None and step_index in self._asked_at:
            self._hear()
        return self._found.get(step_index)

    async def end(self) -> PentimentoError:
        """Return the error that ended the stream, once it has ended."""
        await self._ended.wait()
        assert self._error is not None
        return self._error

    def close(self, *, in_order: bool = False) -> None:
        """End the stream immediately; `in_order`: no answers are in use. Idempotent."""
        in_order = in_order and not self._asked_at and self._error is None
        if self._line is not None:
            self._listener.forget(self._line.fileno())
            with self._reading:
                self._closed = True
                self._line.close()
        for task in self._tasks:
            task.cancel()
        self._stream.cancel()
        self._receiver.close(self._directory.kept if in_order and self._directory is not None else None)

    @abstractmethod
    def _opening(self, tensors: dict[str, tensor_pb.Tensor]) -> Any:
        """Return the opening message."""

    @abstractmethod
    def _step(self, step_index: int, timestep: float, latent: tensor_pb.Tensor) -> Any:
        """Return the message of a step."""

    @abstractmethod
    def _answered(self, step_index: int, answer: Any) -> Sequence[tensor_pb.Tensor]:
        """Return the tensors of an answer. Raises Aborted (STALE_FRAME) for an answer to another step."""

    @abstractmethod
    def _expected(self, step_index: int) -> list[ExpectedTensor]:
        """Return the expected tensors of an answer."""

    @abstractmethod
    def _accept(self, opened: Any) -> None:
        """Check the answer to the opening. Raises Aborted (STALE_FRAME) for another one than was asked for."""

    def _binding(self, step_index: int, layer: str, digest: str) -> Binding:
        attempt = self._request.attempt
        return Binding(attempt.request_id, attempt.fencing_token, step_index, layer, digest, self._epoch)

    def _latent_binding(self, step_index: int) -> Binding:
        return self._binding(step_index, "latent", self._request.model_digest)

    def _opened_line(self, told: tensor_pb.StepLine) -> AskingLine | None:
        """Open the line; None if steps have to use the stream."""
        assert self._directory is not None
        try:
            return open_asking_line(
                told,
                self._directory,
                self._receiver,
                self._latent_binding,
                lambda step: self._binding(step, self.answer_layer, self._answer_digest),
                self._expected,
            )
        except PentimentoError as error:
            logger.info("steps travel over gRPC instead of shared memory", extra={"reason": error.reason})
            return None

    def _with_chunks(self, message: Any, packed: PackedTensors) -> Iterator[Any]:
        yield message
        for chunk in packed.chunks:
            yield self.message(chunk=chunk.message())

    def _given_back(self, step_index: int, keeps_from: int) -> list[tensor_pb.SharedMemoryAck]:
        """Drop the answers that are no longer kept; return what frees their memory."""
        dropped = [step for step in list(self._found) if step < keeps_from or step == step_index]
        acks = [self._found.pop(step).ack for step in dropped]
        return [ack for ack in acks if ack is not None]

    async def _send(self, messages: Iterable[Any]) -> None:
        for message in messages:
            await self._stream.send(message)

    async def _write(self) -> None:
        """Send the steps that go by the stream."""
        while True:
            messages, sent = await self._outbox.get()
            await self._send(messages)
            sent.set()

    async def _read(self) -> None:
        """Read answers until the stream ends; with a line none is due here."""
        while True:
            answer = await self._stream.read(self.answer_field if self._line is None else "")
            step_index = next(iter(self._asked_at), -1)
            tensors = self._answered(step_index, getattr(answer, self.answer_field))
            with judging_answers():
                found = self._receiver.begin(tensors, self._expected(step_index))
            while found is None:
                chunk = (await self._stream.read("chunk")).chunk
                with judging_answers():
                    found = self._receiver.add(chunk)
            self._keep(step_index, found)
            self.heard()

    def _hear(self) -> None:
        """Read answers from the line; on the listener's thread and on the threads of callers of `take`."""
        assert self._line is not None
        with self._reading:
            if self._closed or self._error is not None:
                return
            try:
                with judging_answers():
                    for step_index, found in self._line.read():
                        self._keep(step_index, found)
            except PentimentoError as error:
                self._listener.forget(self._line.fileno())
                self._lose(error)
        if self._hears_on_loop:
            self._loop.call_soon_threadsafe(self.heard)

    def _keep(self, step_index: int, found: ReceivedTensors) -> None:
        self._found[step_index] = found
        if found.awaited_count:
            self._asked_at[step_index] = time.monotonic()
        else:
            self._asked_at.pop(step_index, None)

    async def _notice_silence(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            oldest = min(list(self._asked_at.values()), default=None)
            if oldest is not None and time.monotonic() - oldest >= self.silent_after_s:
                raise Unavailable(self.silent_reason, f"{self.other_end} did not answer a step in time")

    async def _ending(self, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part of the stream, and end the stream with its error."""
        try:
            await part()
        except PentimentoError as error:
            self._lose(error)

    def _lose(self, error: PentimentoError) -> None:
        self._error = self._error or error
        self._loop.call_soon_threadsafe(self._ended.set)


Stream = TypeVar("Stream", bound=StepStream)


class StepClient(Generic[Stream]):
    """Open streams of steps to another process.

    `directory`: folder of the shared memory, None for chunks. `lined`: send steps by lines through that memory if the
    other end supports it; `listener` reads their answers, by default the event loop."""

    stream: type[Stream]
    # Returns the call of the other end, by channel.
    calls: Callable[[grpc.aio.Channel], Any]

    def __init__(
        self,
        channel: grpc.aio.Channel,
        directory: RegionDirectory | None = None,
        lined: bool = True,
        listener: LineListener | None = None,
    ) -> None:
        self._channel = channel
        self._call = self.calls(channel)
        self._directory = directory
        self._lined = lined
        self._listener = listener

    async def open_stream(self, request: Any, stream_epoch: int, timeout_s: float) -> Stream:
        """Return an open stream. Raises the other end's error; Unavailable after a timeout."""
        stream = self.stream(self._call(), request, stream_epoch, self._directory, self._lined, self._listener)
        await stream.open_within(timeout_s)
        return stream
