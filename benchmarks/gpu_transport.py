"""Time tensors between two processes on one device: SDXL's residuals of a step through the device's memory and through
the host's (row of `gpu_rows`).
"""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from benchmarks.gpu_setup import GpuSetup, RowResult
from lab.runs.measure import informative, measured
from pentimento.api.controlnet.v1 import controlnet_service_pb2 as controlnet_pb
from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.tensors.cuda import WIRE_DTYPES, outgoing_tensor, region_directory, tensor_over
from pentimento.tensors.receiving import ExpectedTensor, open_receiver
from pentimento.tensors.sending import open_sender, transport_offer
from pentimento.wire.tensors import UNBOUND

# channels and side of SDXL's residuals at 1024 x 1024, rows of a guided image (Katz, section 5: 108 MiB)
SDXL_SIDES = ((320, 128),) * 3 + ((320, 64), (640, 64), (640, 64), (640, 32)) + ((1280, 32),) * 3
TINY_SIDES = ((32, 16), (32, 16), (64, 8))


def shapes(*, tiny: bool) -> list[tuple[int, ...]]:
    return [(2, channels, side, side) for channels, side in (TINY_SIDES if tiny else SDXL_SIDES)]


def transport_row(setup: GpuSetup) -> RowResult:
    """Measure GB/s from the request until the tensors belong to the requesting process, on its device."""
    result = RowResult()
    total_bytes = sum(torch.Size(shape).numel() * 2 for shape in shapes(tiny=setup.tiny))
    what = f"{'tiny' if setup.tiny else 'SDXL'} residuals ({total_bytes / 1e6:.1f} MB)"
    for way, shares_device in {"the host's memory": False, "the device's memory": True}.items():
        name = f"{what} by {way}"
        if shares_device and setup.device.type != "cuda":
            result.not_run[name] = "NO_CUDA: a CPU shares no device memory"
            continue
        try:
            seconds = _step_seconds(setup, shares_device=shares_device)
        except (RuntimeError, EOFError) as error:
            result.not_run[name] = f"{type(error).__name__}: {error}"
            continue
        speeds = [total_bytes / one / 1e9 for one in seconds]
        result.figures.append(measured(name, speeds, median, informative("GB/s")))
    return result


def _step_seconds(setup: GpuSetup, *, shares_device: bool) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="pmt-", dir="/dev/shm") as folder:
        Path(folder, "shared").mkdir(mode=0o700)
        shared = f"{folder}/shared"
        directory = region_directory(shared, setup.device if shares_device else None)
        with _sender(setup, shared, shares_device=shares_device) as connection:
            connection.send_bytes(transport_offer(directory).SerializeToString())
            region = pb.SharedMemoryRegion.FromString(connection.recv_bytes())
            receiver, told = open_receiver(region, directory)
            if told is None or not told.opened or region.HasField("cuda_ipc") is not shares_device:
                raise RuntimeError("the two processes could not share a region of that memory")
            dims = shapes(tiny=setup.tiny)
            expected = [ExpectedTensor(WIRE_DTYPES[torch.float16], shape, UNBOUND) for shape in dims]
            seconds = []
            for _ in range(setup.rounds + 2):
                setup.synchronise()
                began_at = time.perf_counter()
                connection.send_bytes(b"step")
                answer = controlnet_pb.Residuals.FromString(connection.recv_bytes())
                found = receiver.begin(answer.down_block_residuals, expected)
                assert found is not None and found.ack is not None
                own = [tensor_over(wire).to(setup.device, copy=True) for wire in found.tensors]
                setup.synchronise()
                seconds.append(time.perf_counter() - began_at)
                assert all(torch.equal(tensor[0, 0, 0, :1].cpu(), torch.ones(1).half()) for tensor in own)
                connection.send_bytes(found.ack.SerializeToString())
            receiver.close()
    # the first two open handles and fault pages in
    return seconds[2:]


@contextmanager
def _sender(setup: GpuSetup, shared: str, *, shares_device: bool) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, shared, str(setup.device), shares_device, setup.tiny)
    process = context.Process(target=_send, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(10)
        process.kill()


def _send(connection: Connection, shared: str, device_name: str, shares_device: bool, tiny: bool) -> None:
    """Run as the other process: answer each step until the connection closes."""
    device = torch.device(device_name)
    directory = region_directory(shared, device if shares_device else None)
    tensors: list[Tensor] = [torch.ones(shape, dtype=torch.float16, device=device) for shape in shapes(tiny=tiny)]
    offer = pb.TensorTransportOffer.FromString(connection.recv_bytes())
    sender, region = open_sender(offer, directory, [tensor.nbytes for tensor in tensors])
    assert region is not None
    connection.send_bytes(region.SerializeToString())
    try:
        while connection.recv_bytes() == b"step":
            packed = sender.pack([outgoing_tensor(tensor, UNBOUND) for tensor in tensors])
            answer = controlnet_pb.Residuals(down_block_residuals=packed.tensors)
            connection.send_bytes(answer.SerializeToString())
            sender.acknowledged(pb.SharedMemoryAck.FromString(connection.recv_bytes()))
    except EOFError:
        sender.close()
