"""Buffers in host memory that serve one staged network after the other."""

import torch
from torch import nn

from pentimento.diffusion.host_memory import HostBuffers, HostMemory
from pentimento.policies.buffer_pools import best_fit


def network(width: int) -> nn.Module:
    """Return a network with two tensors that share their memory, and a buffer."""
    torch.manual_seed(width)
    made = nn.Sequential(
        nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
    )
    made[1].weight = made[0].weight
    return made.requires_grad_(False)


def lend_from(sizes: tuple[int, ...]) -> tuple[HostBuffers, list[int]]:
    allocated: list[int] = []

    def allocate(byte_count: int) -> HostMemory:
        allocated.append(byte_count)
        return HostMemory(byte_count, is_read_by_device=False)

    return HostBuffers(sizes, best_fit, allocate), allocated


def test_held_network_keeps_its_values_in_one_buffer() -> None:
    buffers, _ = lend_from(())
    held, before = network(40), network(40).state_dict()
    buffers.hold(held)

    memory = buffers._lent[0].bytes
    begin, end = memory.data_ptr(), memory.data_ptr() + len(memory)
    for name, tensor in held.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert begin <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= end
        assert tensor.data_ptr() % tensor.element_size() == 0
    assert held[1].weight is held[0].weight


def test_buffers_have_the_sizes_of_the_pools_and_serve_again() -> None:
    # Weights of 6,400 bytes, four vectors and a number, each aligned to 64 bytes.
    needed = 40 * 40 * 4 + 4 * 192 + 64
    buffers, allocated = lend_from((needed + 1, needed + 1000, 10**6))
    buffers.hold(network(40))
    buffers.hold(network(40))
    assert (allocated, buffers.byte_count) == ([needed + 1, needed + 1], 2 * needed + 2)

    buffers.take_back()
    buffers.hold(network(20))
    assert len(allocated) == 2
    buffers.take_back()
    # What the last network did not need is freed.
    assert buffers.byte_count == needed + 1
    buffers.hold(network(600))
    assert allocated[2:] == [600 * 600 * 4 + 4 * 2432 + 64]
