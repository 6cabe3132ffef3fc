"""Exchange steps over a line, at both ends: the asking end writes latents to its slots, the answering end writes
answers to slots of the stream's region, and the line carries their positions. Bindings are checked as on the stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import Aborted, InvalidArgument, ResourceExhausted, Unavailable
from pentimento.tensors.lines import HostLine, make_line, open_line
from pentimento.tensors.outgoing import FALLBACKS, HEADER_BYTES, OutgoingTensor, SlotReader, SlotWriter, layout_of
from pentimento.tensors.receiving import BundleInParts, ExpectedTensor, ReceivedTensors, TensorReceiver
from pentimento.tensors.regions import RegionDirectory, RegionSize
from pentimento.tensors.sending import SLOT_COUNT, SlotInParts, TensorSender
from pentimento.wire.codec import decode, nested
from pentimento.wire.tensors import Binding, WireTensor, size_of

# One step is computed while the other is in transit: one per slot.
MAX_UNDER_WAY = SLOT_COUNT


class AskingLine:
    """Implement the asking end. By step, `bound` returns the binding of its latents, `answered` the binding of its
    answer, and `expected` the answer's tensors. At most MAX_UNDER_WAY steps are in flight."""

    def __init__(
        self,
        line: HostLine,
        sender: TensorSender,
        receiver: TensorReceiver,
        bound: Callable[[int], Binding],
        answered: Callable[[int], Binding],
        expected: Callable[[int], Sequence[ExpectedTensor]],
    ) -> None:
        self._line = line
        self._sender = sender
        self._receiver = receiver
        self._bound = bound
        self._answered = answered
        self._expected = expected
        # The slot of the latents, and the tensors expected as the answer, by step in flight.
        self._slots: dict[int, pb.SharedMemorySlot] = {}
        self._wanted: dict[int, Sequence[ExpectedTensor]] = {}
        # Answers that have arrived in part.
        self._begun: dict[int, BundleInParts] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when an answer has arrived."""
        return self._line.fileno()

    def ask(
        self, step_index: int, timestep: float, latents: OutgoingTensor, given_back: Sequence[pb.SharedMemoryAck]
    ) -> None:
        """Send a step's latents, on any thread, one at a time. Raises Unavailable if no slot is free or the line is
        closed or full."""
        binding = self._bound(step_index)
        slot = self._sender.in_one_slot([replace(latents, binding=binding)])
        if slot is None:
            raise Unavailable("LINE_GONE", "no slot is free for a step's latents")
        self._slots[step_index] = slot
        step = pb.LinedStep(
            timestep=timestep, binding=nested(binding, pb.TensorBinding), latent=slot, given_back=given_back
        )
        if not self._line.send(step.SerializeToString()):
            raise Unavailable("LINE_GONE", "the line takes nothing more")
        # Computed while the other end works, not when the answer arrives.
        self._wanted[step_index] = self._expected(step_index)

    def read(self) -> list[tuple[int, ReceivedTensors]]:
        """Return the steps with answers that have arrived, in full or in part: each time all tensors so far. Raises
        Aborted (STALE_FRAME) for data that is no answer to a step in flight, and for a part out of order;
        InvalidArgument for a malformed line message or slot."""
        return [self._answer(data) for data in self._line.read()]

    def close(self) -> None:
        """Close the line and release its slots. Idempotent."""
        self._line.close()
        self._sender.close()

    def _answer(self, data: bytes) -> tuple[int, ReceivedTensors]:
        try:
            answer = pb.LinedAnswer.FromString(data)
        except DecodeError:
            raise Aborted("STALE_FRAME", "what came by the line is no answer") from None
        step_index = answer.binding.step_index
        slot = self._slots.get(step_index)
        if slot is None or decode(answer.binding, Binding) != self._answered(step_index):
            raise Aborted("STALE_FRAME", "an answer came by the line that this stream did not ask for")
        begun = self._begun.pop(step_index, None)
        if answer.more_to_come:
            self._begun[step_index] = begun = begun or self._receiver.in_parts(self._expected(step_index))
            return step_index, begun.add(answer.slot, True)
        del self._slots[step_index]
        ack = pb.SharedMemoryAck(region_id=slot.region_id, slot=slot.slot, generation=slot.generation)
        self._sender.acknowledged(ack)
        wanted = self._wanted.pop(step_index, None) or self._expected(step_index)
        if begun is not None:
            return step_index, begun.add(answer.slot, False)
        return step_index, self._receiver.from_one_slot(answer.slot, wanted)


def open_asking_line(
    told: pb.StepLine,
    directory: RegionDirectory,
    receiver: TensorReceiver,
    bound: Callable[[int], Binding],
    answered: Callable[[int], Binding],
    expected: Callable[[int], Sequence[ExpectedTensor]],
) -> AskingLine:
    """Return the asking end of a line that another process made; `receiver` reads the stream's region. Raises
    FailedPrecondition if the line or its slots are missing, InvalidArgument for malformed names or sizes."""
    size = RegionSize(told.steps.slot_size_bytes, told.steps.slot_count)
    line = open_line(directory, told.line)
    try:
        sender = TensorSender(SlotWriter(directory.open(told.steps.region_id, size)))
    except BaseException:
        line.close()
        raise
    return AskingLine(line, sender, receiver, bound, answered, expected)


@dataclass(frozen=True)
class LinedLatents:
    """Hold a step received over a line. Its latents are valid until it is answered."""

    step_index: int
    timestep: float
    latents: WireTensor


class AnsweringLine:
    """Implement the answering end: `sender` writes to the stream's region. By step, `wanted` returns the expected
    latents, and `answered` the binding of the answer."""

    def __init__(
        self,
        line: HostLine,
        receiver: TensorReceiver,
        sender: TensorSender,
        wanted: Callable[[int], ExpectedTensor],
        answered: Callable[[int], Binding],
    ) -> None:
        self._line = line
        self._receiver = receiver
        self._sender = sender
        self._wanted = wanted
        self._answered = answered
        # Slots of answers that were sent in part.
        self._begun: dict[int, SlotInParts] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when a step has arrived."""
        return self._line.fileno()

    def read(self, begin: Callable[[int, float], None]) -> list[LinedLatents]:
        """Return the steps that have arrived; `begin` validates number and timestep of each before its latents are
        read. Raises the errors of `begin`, Aborted (STALE_FRAME) for latents of another stream, InvalidArgument for a
        malformed step."""
        return [self._step(data, begin) for data in self._line.read()]

    def answer(self, step_index: int, tensors: Sequence[OutgoingTensor], awaited_bytes: Sequence[int] = ()) -> None:
        """Send a step's answer, or its new part: `tensors` are all tensors so far, tensors of `awaited_bytes` will
        follow. On any thread, one at a time. Raises Aborted if the slots of earlier answers were not returned,
        Unavailable if the line is closed or full."""
        layout = layout_of([*(tensor.size_bytes for tensor in tensors), *awaited_bytes])
        begun = self._begun.pop(step_index, None) or self._sender.in_parts(layout)
        if begun is None:
            raise Aborted("STALE_FRAME", "no slot is free: those of steps before were not given back")
        if awaited_bytes:
            self._begun[step_index] = begun
            # Computed again after an error: these tensors were sent before.
            if len(tensors) <= begun.count:
                return
        answer = pb.LinedAnswer(
            binding=nested(self._answered(step_index), pb.TensorBinding),
            slot=begun.add(tensors[begun.count :]),
            more_to_come=bool(awaited_bytes),
        )
        if not self._line.send(answer.SerializeToString()):
            raise Unavailable("LINE_GONE", "the line takes nothing more")

    def close(self) -> None:
        """Close the line and release its slots. Idempotent."""
        self._line.close()
        self._receiver.close()

    def _step(self, data: bytes, begin: Callable[[int, float], None]) -> LinedLatents:
        try:
            step = pb.LinedStep.FromString(data)
        except DecodeError:
            raise InvalidArgument.of("line", "must carry steps") from None
        for ack in step.given_back:
            self._sender.acknowledged(ack)
        step_index = step.binding.step_index
        begin(step_index, step.timestep)
        wanted = self._wanted(step_index)
        if decode(step.binding, Binding) != wanted.binding:
            raise Aborted("STALE_FRAME", f"latents came that are not of step {step_index} of this stream")
        found = self._receiver.from_one_slot(step.latent, [wanted])
        return LinedLatents(step_index, step.timestep, found.tensors[0])


def make_answering_line(
    directory: RegionDirectory | None,
    sender: TensorSender,
    wanted: Callable[[int], ExpectedTensor],
    answered: Callable[[int], Binding],
) -> tuple[AnsweringLine | None, pb.StepLine | None]:
    """Return a new line for a stream, and the message that the other end opens it with; None for both if no line is
    available."""
    if directory is None or not sender.has_region:
        return None, None
    line, latent = None, wanted(0)
    size = RegionSize(HEADER_BYTES + size_of(latent.dtype, latent.dims), SLOT_COUNT)
    try:
        line, told = make_line(directory)
        region = directory.create(size)
    except ResourceExhausted:
        FALLBACKS.labels("no_line").inc()
        if line is not None:
            line.close()
        return None, None
    slots = pb.SharedMemoryRegion(
        region_id=region.region_id, slot_size_bytes=size.slot_size_bytes, slot_count=size.slot_count
    )
    receiver = TensorReceiver(SlotReader(region))
    return AnsweringLine(line, receiver, sender, wanted, answered), pb.StepLine(line=told, steps=slots)
