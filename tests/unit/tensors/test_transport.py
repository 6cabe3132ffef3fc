"""Send tensors between two ends of a stream by every transport; unexpected ones are rejected by name."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import Aborted, InvalidArgument, PentimentoError
from pentimento.tensors.cuda import all_finite, outgoing_tensor, tensor_over
from pentimento.tensors.outgoing import OutgoingTensor, outgoing
from pentimento.tensors.receiving import ExpectedTensor, ReceivedTensors, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import INLINE_BYTES, SLOT_COUNT, TensorSender, open_sender, transport_offer
from pentimento.wire.tensors import Binding, Dtype, WireTensor, size_of

BINDING = Binding("request", 7, 3, "down_block_0", "sha256:model", 2)
SHAPES = ((2, 3, 64, 64), (1, 7), (2, 300, 30))


def bindings() -> list[Binding]:
    return [replace(BINDING, layer=f"down_block_{index}") for index in range(len(SHAPES))]


def tensors() -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in SHAPES]


def expected() -> list[ExpectedTensor]:
    pairs = zip(SHAPES, bindings(), strict=True)
    return [ExpectedTensor(Dtype.FLOAT32, shape, binding) for shape, binding in pairs]


def outgoing_of(sent: Sequence[torch.Tensor]) -> list[OutgoingTensor]:
    return [outgoing_tensor(one, binding) for one, binding in zip(sent, bindings(), strict=True)]


def send(sender: TensorSender, sent: Sequence[torch.Tensor]) -> tuple[list[pb.Tensor], list[pb.TensorChunk]]:
    packed = sender.pack(outgoing_of(sent))
    return list(packed.tensors), [chunk.message() for chunk in packed.chunks]


def assert_equal(found: ReceivedTensors, sent: Sequence[torch.Tensor]) -> None:
    assert all(torch.equal(tensor_over(wire), one) for wire, one in zip(found.tensors, sent, strict=True))


def take(receiver: TensorReceiver, messages: Sequence[pb.Tensor], chunks: Sequence[pb.TensorChunk]) -> ReceivedTensors:
    found = receiver.begin(messages, expected())
    for chunk in chunks:
        assert found is None
        found = receiver.add(chunk)
    assert found is not None
    return found


class Ends:
    """Both ends of a stream over one directory."""

    def __init__(self, directory: RegionDirectory) -> None:
        sizes = [size_of(Dtype.FLOAT32, shape) for shape in SHAPES]
        self.sender, region = open_sender(transport_offer(directory), directory, sizes)
        self.receiver, told = open_receiver(region, directory)
        assert told is not None and told.opened
        self.sender.region_opened(told)


@pytest.fixture
def ends(directory: RegionDirectory) -> Ends:
    return Ends(directory)


def test_a_slot_carries_a_bundle_and_nothing_is_copied_out_of_it(ends: Ends) -> None:
    sent = tensors()

    messages, chunks = send(ends.sender, sent)
    found = take(ends.receiver, messages, chunks)

    views = [tensor_over(one) for one in found.tensors]
    assert all(torch.equal(view, one) for view, one in zip(views, sent, strict=True))
    assert (chunks, messages[0].WhichOneof("payload")) == ([], "shared_memory")
    assert found.ack is not None
    ends.sender.acknowledged(found.ack)
    # The views are the slot itself: the slot's next but one bundle is seen through them.
    send(ends.sender, [one + 1 for one in sent])
    send(ends.sender, [one + 2 for one in sent])
    assert torch.equal(views[0], sent[0] + 2)


def test_chunks_carry_the_same_bytes(ends: Ends) -> None:
    sent = tensors()

    messages, chunks = send(TensorSender(), sent)
    found = take(TensorReceiver(), messages, chunks)

    assert messages[0].WhichOneof("payload") == "chunks"
    assert found.ack is None
    assert_equal(found, sent)


def test_little_tensors_go_inside_the_message(ends: Ends) -> None:
    wire = WireTensor(Dtype.UINT8, (INLINE_BYTES,), bytes(range(256)) * (INLINE_BYTES // 256), BINDING)

    packed = ends.sender.pack([outgoing(wire)])
    found = ends.receiver.begin(packed.tensors, [ExpectedTensor(wire.dtype, wire.dims, BINDING)])

    assert found == ReceivedTensors((wire,))


def test_a_half_precision_tensor_of_strides_keeps_its_values() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T

    packed = TensorSender().pack([outgoing_tensor(tensor, BINDING)])
    found = TensorReceiver().begin(packed.tensors, [ExpectedTensor(Dtype.BFLOAT16, (3, 2), BINDING)])

    assert found is not None
    assert torch.equal(tensor_over(found.tensors[0]), tensor)


def test_bundle_goes_in_chunks_without_free_slot(ends: Ends) -> None:
    first, _ = send(ends.sender, tensors())
    send(ends.sender, tensors())

    third, chunks = send(ends.sender, tensors())
    assert third[0].WhichOneof("payload") == "chunks"
    assert chunks[-1].last
    found = take(ends.receiver, first, [])
    assert found.ack is not None
    ends.sender.acknowledged(found.ack)

    assert send(ends.sender, tensors())[0][0].WhichOneof("payload") == "shared_memory"


def test_a_slot_is_acknowledged_once_and_by_its_generation(ends: Ends) -> None:
    messages, _ = send(ends.sender, tensors())
    ack = take(ends.receiver, messages, []).ack
    assert ack is not None
    wrong = pb.SharedMemoryAck(region_id=ack.region_id, slot=ack.slot, generation=ack.generation + 1)

    with pytest.raises(InvalidArgument):
        ends.sender.acknowledged(wrong)
    ends.sender.acknowledged(ack)
    with pytest.raises(InvalidArgument):
        ends.sender.acknowledged(ack)


@pytest.mark.parametrize("written_over", [False, True])
def test_slot_read_before_or_written_over_is_refused(ends: Ends, written_over: bool) -> None:
    messages, _ = send(ends.sender, tensors())
    slot = messages[0].shared_memory
    if written_over:
        ack = pb.SharedMemoryAck(region_id=slot.region_id, slot=slot.slot, generation=slot.generation)
        ends.sender.acknowledged(ack)
        send(ends.sender, tensors())
        send(ends.sender, tensors())
    else:
        take(ends.receiver, messages, [])

    with pytest.raises(Aborted) as caught:
        take(ends.receiver, messages, [])
    assert caught.value.reason == "STALE_FRAME"


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "another"},
        {"fencing_token": 8},
        {"step_index": 2},
        {"layer": "mid_block"},
        {"model_digest": "sha256:other"},
        {"stream_epoch": 1},
    ],
)
def test_frame_of_another_binding_is_refused(ends: Ends, change: dict[str, object]) -> None:
    for sender in (ends.sender, TensorSender()):
        messages, _ = send(sender, tensors())
        for name, value in change.items():
            setattr(messages[1].binding, name, value)

        with pytest.raises(Aborted) as caught:
            ends.receiver.begin(messages, expected())
        assert caught.value.reason == "STALE_FRAME"


LIES: dict[str, Callable[[pb.Tensor], object]] = {
    "dims": lambda message: message.dims.__setitem__(0, message.dims[0] + 1),
    "dtype": lambda message: setattr(message, "dtype", pb.DTYPE_INT32),
    "slot size": lambda message: setattr(message.shared_memory, "size_bytes", message.shared_memory.size_bytes - 4),
    "slot offset": lambda message: setattr(message.shared_memory, "offset_bytes", 1 << 40),
    "slot number": lambda message: setattr(message.shared_memory, "slot", 9),
    "slot behind the last": lambda message: setattr(message.shared_memory, "slot", SLOT_COUNT),
    "region": lambda message: setattr(message.shared_memory, "region_id", "0" * 32),
    "nothing": lambda message: message.ClearField("shared_memory"),
    "object key": lambda message: setattr(message.object, "key", "../../secret"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_lie_about_a_slot_is_refused(ends: Ends, lie: Callable[[pb.Tensor], object]) -> None:
    messages, _ = send(ends.sender, tensors())
    with pytest.raises(InvalidArgument):
        ends.receiver.begin(messages[:-1], expected())
    for message in messages:
        lie(message)

    with pytest.raises(InvalidArgument):
        ends.receiver.begin(messages, expected())


def test_values_that_are_not_finite_are_refused(ends: Ends) -> None:
    sent = tensors()
    sent[1][0, 3] = torch.nan
    found = take(ends.receiver, *send(ends.sender, sent))

    with pytest.raises(InvalidArgument):
        tensor_over(found.tensors[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_all_finite_finds_one_value_anywhere(dtype: torch.dtype) -> None:
    for value, place in product((torch.nan, torch.inf, -torch.inf), (0, 31, -1)):
        tensor = torch.full((67,), torch.finfo(dtype).max, dtype=dtype)
        assert all_finite(tensor)
        tensor[place] = value
        assert not all_finite(tensor), (value, place)
    assert all_finite(torch.empty(0, dtype=dtype))


def test_tensors_outlive_the_stream_that_brought_them(ends: Ends) -> None:
    sent = tensors()
    found = take(ends.receiver, *send(ends.sender, sent))
    views = [tensor_over(one) for one in found.tensors]

    ends.sender.close()
    ends.receiver.close()

    assert all(torch.equal(view, one) for view, one in zip(views, sent, strict=True))


def test_sender_fills_same_memory_once_chunks_were_sent() -> None:
    sender, memories = TensorSender(), []

    for sent in (tensors(), tensors()):
        receiver, packed = TensorReceiver(), sender.pack(outgoing_of(sent))
        found = receiver.begin(packed.tensors, expected())
        for chunk in packed.chunks:
            assert isinstance(chunk.data, memoryview)
            memories.append(chunk.data.obj)
            found = receiver.add(chunk)
        assert found is not None
        assert_equal(found, sent)

    assert len({id(memory) for memory in memories}) == 1


def test_bundle_on_its_way_keeps_its_memory() -> None:
    sender, first, second = TensorSender(), tensors(), tensors()
    packed = sender.pack(outgoing_of(first))
    sent = [next(packed.chunks).message()]

    send(sender, second)
    sent += [chunk.message() for chunk in packed.chunks]

    assert_equal(take(TensorReceiver(), packed.tensors, sent), first)


def test_chunks_and_messages_come_in_turn() -> None:
    receiver = TensorReceiver()
    messages, chunks = send(TensorSender(), tensors())
    with pytest.raises(InvalidArgument):
        receiver.add(chunks[0])
    receiver.begin(messages, expected())

    with pytest.raises(InvalidArgument):
        receiver.begin(messages, expected())


@given(data=st.binary(max_size=200))
def test_any_message_is_taken_or_refused_by_a_typed_error(data: bytes) -> None:
    try:
        message = pb.Tensor.FromString(data)
    except Exception:
        return
    try:
        TensorReceiver().begin([message], [ExpectedTensor(Dtype.FLOAT32, (1,), BINDING)])
    except PentimentoError:
        return
    assert message.inline
