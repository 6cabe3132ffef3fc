"""Streams that keep tensors on the device of both ends: agreement, rejection, and the way of a message there and back.
The memory is the host's here; only the handles of a CUDA device need one (`python -m benchmarks.gpu_rows`)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import Aborted
from pentimento.tensors.cuda import CudaMemory, Sharing, cuda_memory, outgoing_tensor, tensor_over
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import TensorSender, common_transports, open_sender, transport_of, transport_offer
from pentimento.wire.tensors import Binding, Dtype, size_of

CPU = torch.device("cpu")
BINDING = Binding("request", 7, 3, "mid_block", "sha256:model", 2)
SHAPE = (2, 4, 64, 64)
EXPECTED = [ExpectedTensor(Dtype.FLOAT16, SHAPE, BINDING)]
SIZES = [size_of(Dtype.FLOAT16, SHAPE)]


class HostHandles:
    """Handles of the host's memory; `refuses` makes an open fail, as a device may."""

    def __init__(self) -> None:
        self.shared: dict[bytes, Tensor] = {}
        self.refuses: set[str] = set()

    @property
    def sharing(self) -> Sharing:
        return Sharing(self._share, self._open)

    def _share(self, memory: Tensor) -> pb.CudaIpcHandle:
        self._check("share")
        handle = bytes([len(self.shared)])
        self.shared[handle] = memory
        return pb.CudaIpcHandle(handle=handle, size_bytes=len(memory))

    def _open(self, device: torch.device, told: pb.CudaIpcHandle) -> Tensor:
        self._check("open")
        return self.shared[told.handle].view(-1)

    def _check(self, act: str) -> None:
        if act in self.refuses:
            raise RuntimeError("CUDA error: operation not supported")


@pytest.fixture
def handles() -> HostHandles:
    return HostHandles()


def directory(tmp_path: Path, handles: HostHandles, domain: str = "boot:GPU-1") -> RegionDirectory:
    (tmp_path / "shared").mkdir(mode=0o700, exist_ok=True)
    return RegionDirectory(tmp_path / "shared", CudaMemory(CPU, domain, handles.sharing))


def opened(
    ours: RegionDirectory, theirs: RegionDirectory
) -> tuple[TensorSender, TensorReceiver, pb.SharedMemoryRegion]:
    sender, region = open_sender(transport_offer(theirs), ours, SIZES)
    assert region is not None
    receiver, told = open_receiver(region, theirs)
    assert told is not None
    sender.region_opened(told)
    return sender, receiver, region


def ones() -> list[OutgoingTensor]:
    return [outgoing_tensor(torch.ones(SHAPE).half(), BINDING)]


def test_step_stays_in_device_memory_without_copy(tmp_path: Path, handles: HostHandles) -> None:
    shared = directory(tmp_path, handles)
    sender, receiver, region = opened(shared, shared)
    assert region.HasField("cuda_ipc") and shared.region_count() == 0

    for step in range(5):
        sent, binding = torch.randn(SHAPE).half(), replace(BINDING, step_index=step)
        packed = sender.pack([outgoing_tensor(sent, binding)])
        found = receiver.begin(packed.tensors, [replace(EXPECTED[0], binding=binding)])
        assert found is not None and found.ack is not None
        tensor = tensor_over(found.tensors[0])
        assert torch.equal(tensor, sent)
        assert tensor.untyped_storage().data_ptr() == handles.shared[region.cuda_ipc.handle].data_ptr()
        sender.acknowledged(found.ack)


def test_a_slot_that_was_written_over_is_refused(tmp_path: Path, handles: HostHandles) -> None:
    shared = directory(tmp_path, handles)
    sender, receiver, region = opened(shared, shared)
    messages = sender.pack(ones()).tensors
    handles.shared[region.cuda_ipc.handle][:8] += 1

    with pytest.raises(Aborted) as refusal:
        receiver.begin(messages, EXPECTED)

    assert refusal.value.reason == "STALE_FRAME"


def test_another_device_or_none_gets_shared_memory(tmp_path: Path, handles: HostHandles) -> None:
    ours = directory(tmp_path, handles)
    for theirs in (directory(tmp_path, handles, "boot:GPU-2"), RegionDirectory(tmp_path / "shared")):
        best, *_ = common_transports(transport_offer(theirs), transport_offer(ours))
        _, _, region = opened(ours, theirs)

        assert best == transport_of(region) == pb.TENSOR_TRANSPORT_SHARED_MEMORY
        assert not region.HasField("cuda_ipc")
    _, _, own = opened(ours, ours)
    best, *_ = common_transports(transport_offer(ours), transport_offer(ours))
    assert best == transport_of(own) == pb.TENSOR_TRANSPORT_CUDA_IPC
    assert transport_of(None) == pb.TENSOR_TRANSPORT_CHUNKS


def test_a_device_that_does_not_share_is_done_without(tmp_path: Path, handles: HostHandles) -> None:
    shared = directory(tmp_path, handles)
    handles.refuses.add("share")

    _, _, region = opened(shared, shared)

    assert not region.HasField("cuda_ipc")


@pytest.mark.parametrize("why", ["refused", "another size", "no device"])
def test_an_end_that_cannot_open_it_gets_chunks(tmp_path: Path, handles: HostHandles, why: str) -> None:
    shared = theirs = directory(tmp_path, handles)
    sender, region = open_sender(transport_offer(shared), shared, SIZES)
    assert region is not None
    if why == "refused":
        handles.refuses.add("open")
    elif why == "another size":
        region.cuda_ipc.size_bytes += 1
    else:
        theirs = RegionDirectory(tmp_path / "shared")

    _, told = open_receiver(region, theirs)
    assert told is not None and not told.opened
    sender.region_opened(told)

    assert sender.pack(ones()).tensors[0].WhichOneof("payload") == "chunks"


def test_tensors_outlive_the_stream_that_brought_them(tmp_path: Path, handles: HostHandles) -> None:
    shared = directory(tmp_path, handles)
    sender, receiver, _ = opened(shared, shared)
    found = receiver.begin(sender.pack(ones()).tensors, EXPECTED)
    assert found is not None
    tensor = tensor_over(found.tensors[0])

    for end in (sender, receiver, receiver):
        end.close()

    assert torch.equal(tensor, torch.ones(SHAPE).half())


def test_a_cpu_shares_no_device_memory() -> None:
    assert cuda_memory(CPU) is None
