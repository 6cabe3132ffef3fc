"""Ask another process for the answers to denoising steps: one stream, with a line between processes of one host."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.clients.answered_stream import AnsweredStream
from pentimento.clients.errors import judging_answers
from pentimento.clients.lined_answers import LinedAnswers
from pentimento.domain.errors import Aborted, PentimentoError, Unavailable
from pentimento.tensors.lines import LineListener
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, ReceivedTensors, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import PackedTensors, TensorSender
from pentimento.tensors.step_lines import open_asking_line
from pentimento.wire.tensors import Binding

logger = logging.getLogger(__name__)


class StepStream(ABC):
    """Send the latents of steps and receive their answers, in the order of the steps; on the event loop only, except
    where a method says otherwise. A step may be sent while the previous one is running.

    Between processes of one host steps use a line if both ends could open it; errors arrive on the stream itself. A
    subclass names the other end, its errors, and the layer of answers by a line."""

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
        self._listener = listener
        self._sender = TensorSender()
        self._receiver = TensorReceiver()
        self._line: LinedAnswers | None = None
        # The latents that were sent last.
        self._latents: OutgoingTensor | None = None
        # Answers received in slots, by step.
        self._held: dict[int, tensor_pb.SharedMemoryAck] = {}
        # Called on the event loop when an answer may have arrived by the line, or the line ended.
        self.heard: Callable[[], None] = lambda: None

    @property
    def lined(self) -> bool:
        """Return whether steps are sent by a line; on any thread."""
        return self._line is not None

    @property
    def failed(self) -> bool:
        """Return whether no further answers will arrive by the line; on any thread."""
        line = self._line
        return line is None or line.failed

    def arrived(self, step_index: int) -> ReceivedTensors | None:
        """Return the part of a step's answer that the line has received, unless dropped; on any thread."""
        line = self._line
        return None if line is None else line.arrived(step_index)

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
        await self._send(self._opening(dict(zip(names, packed.tensors, strict=True))), packed)
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
                self._open_line(opened.line)

    async def answer(self, step_index: int, timestep: float, latents: OutgoingTensor) -> ReceivedTensors:
        """Return a step's answer. In shared memory it is valid until the next step is sent.

        Raises the error that ends the stream; Aborted (STALE_FRAME) for an answer to another step.
        """
        await self.ask(step_index, timestep, latents, step_index)
        return await self.take(step_index)

    async def ask(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        """Send a step's latents, one call at a time. Frees the memory of answers to steps before `keeps_from`. Raises
        the error that ends the stream."""
        if self._line is not None:
            return self.ask_now(step_index, timestep, latents, keeps_from)
        self._latents = latents
        binding = self._binding(step_index, "latent", self._request.model_digest)
        packed = self._sender.pack([replace(latents, binding=binding)])
        for step in [step for step in list(self._held) if step < keeps_from]:
            await self._stream.send(self.message(ack=self._held.pop(step)))
        await self._send(self._step(step_index, timestep, packed.tensors[0]), packed)

    def ask_now(self, step_index: int, timestep: float, latents: OutgoingTensor, keeps_from: int) -> None:
        """Send like `ask`, by the line and on any thread. Raises Unavailable if the line accepts nothing."""
        line = self._line
        if line is None:
            raise Unavailable(self.gone_reason, "this stream has no line")
        self._latents = latents
        line.ask(step_index, timestep, latents, keeps_from)

    async def take(self, step_index: int) -> ReceivedTensors:
        """Return the answer to the first sent step that is not taken yet, like `answer`. One call at a time."""
        if self._line is not None:
            return await self._line.of(step_index)
        message = getattr(await self._stream.read(self.answer_field), self.answer_field)
        tensors = self._answered(step_index, message)
        with judging_answers():
            found = self._receiver.begin(tensors, self._expected(step_index))
        while found is None:
            chunk = (await self._stream.read("chunk")).chunk
            with judging_answers():
                found = self._receiver.add(chunk)
        if found.ack is not None:
            self._held[step_index] = found.ack
        return found

    def close(self, *, in_order: bool = False) -> None:
        """End the stream immediately; `in_order`: no answers are in use or running."""
        line, self._line = self._line, None
        if line is not None:
            in_order = in_order and line.idle
            line.close()
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

    async def _send(self, message: Any, packed: PackedTensors) -> None:
        await self._stream.send(message)
        for chunk in packed.chunks:
            await self._stream.send(self.message(chunk=chunk.message()))

    def _binding(self, step_index: int, layer: str, digest: str) -> Binding:
        attempt = self._request.attempt
        return Binding(attempt.request_id, attempt.fencing_token, step_index, layer, digest, self._epoch)

    def _open_line(self, told: tensor_pb.StepLine) -> None:
        """Open the line; without it steps use the stream."""
        assert self._directory is not None
        try:
            line = open_asking_line(
                told,
                self._directory,
                self._receiver,
                lambda step: self._binding(step, "latent", self._request.model_digest),
                lambda step: self._binding(step, self.answer_layer, self._answer_digest),
                self._expected,
            )
        except PentimentoError as error:
            logger.info("steps travel over gRPC instead of shared memory", extra={"reason": error.reason})
            return
        self._line = LinedAnswers(line, self._stream, lambda: self.heard(), self._listener, self.silent_after_s)
