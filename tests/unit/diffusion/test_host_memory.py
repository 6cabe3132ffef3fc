"""Buffers in host memory that serve one load after the other."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from pentimento.diffusion.host_memory import HostBuffers

PAGE = 4096


@pytest.fixture
def buffers() -> HostBuffers:
    return HostBuffers(is_read_by_device=False)


def addresses(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def network(width: int) -> nn.Module:
    """Return a network with two tensors that share their memory, and a buffer."""
    torch.manual_seed(width)
    made = nn.Sequential(
        nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
    )
    made[1].weight = made[0].weight
    return made.requires_grad_(False)


def test_held_network_keeps_its_values_in_one_buffer(buffers: HostBuffers) -> None:
    held, before = network(40), network(40).state_dict()
    buffers.hold(held)

    begin = min(addresses(held.state_dict().values()))
    # Weights of 6,400 bytes, four vectors of 160 and a number, each aligned to 64 bytes.
    end = begin + 40 * 40 * 4 + 4 * 192 + 64
    assert begin % PAGE == 0
    for name, tensor in held.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.data_ptr() + tensor.nbytes <= end
        assert tensor.data_ptr() % 64 == 0
    assert held[1].weight is held[0].weight


def test_memory_is_reused_once_no_tensor_over_it_is_left(buffers: HostBuffers) -> None:
    first = buffers.take(10 * PAGE)
    begin, part = first.data_ptr(), first[:PAGE].view(torch.float32)
    del first
    second = buffers.take(10 * PAGE)
    assert (second.data_ptr() == begin, buffers.idle_bytes) == (False, 0)

    del part
    assert buffers.idle_bytes == 10 * PAGE
    third = buffers.take(5 * PAGE)
    assert (third.data_ptr(), third.nbytes, buffers.idle_bytes) == (begin, 5 * PAGE, 0)


def test_new_buffer_has_the_size_of_its_cluster(buffers: HostBuffers) -> None:
    for pages in (100, 99, 80, 60, 40, 20):
        buffers.take(pages * PAGE)
    buffers.drop_idle()

    held = buffers.take(99 * PAGE)
    assert held.nbytes == 99 * PAGE
    del held
    # The six sizes are five clusters; the two that are nearest share one.
    assert buffers.idle_bytes == 100 * PAGE


def test_request_takes_no_buffer_of_more_than_twice_its_size(buffers: HostBuffers) -> None:
    large = buffers.take(100 * PAGE)
    begin = large.data_ptr()
    del large

    small = buffers.take(49 * PAGE)
    assert small.data_ptr() != begin
    assert buffers.take(100 * PAGE).data_ptr() == begin


def test_buffers_stay_within_most_memory_used_together(buffers: HostBuffers) -> None:
    most = [buffers.take(30 * PAGE), buffers.take(20 * PAGE)]
    del most
    assert buffers.idle_bytes == 50 * PAGE

    # No idle buffer fits: the least recently used leaves.
    held = buffers.take(40 * PAGE)
    assert buffers.idle_bytes in (0, 10 * PAGE)
    assert held.nbytes + buffers.idle_bytes <= 50 * PAGE
    buffers.drop_idle()
    assert buffers.idle_bytes == 0


@torch.inference_mode()
def test_memory_taken_in_inference_mode_can_be_changed_in_other_modes(buffers: HostBuffers) -> None:
    assert not buffers.take(PAGE).is_inference()
    assert buffers.take(0).nbytes == 0
