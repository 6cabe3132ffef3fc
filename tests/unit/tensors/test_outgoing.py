"""Lay out the tensors of a bundle, and write them in threads."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pentimento.tensors import outgoing as outgoing_module
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.tensors.outgoing import ALIGNMENT_BYTES, OutgoingTensor, fill_all, layout_of
from pentimento.wire.tensors import UNBOUND, DeviceBytes, Dtype


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make bundles of 64 bytes large, with two processors."""
    monkeypatch.setattr(outgoing_module, "SHARED_FILL_BYTES", 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})


@given(sizes=st.lists(st.integers(0, 200), max_size=6))
def test_tensors_lie_in_order_aligned_and_apart(sizes: list[int]) -> None:
    layout = layout_of(sizes)

    ends_ = [offset + size for offset, size in zip(layout.offsets, sizes, strict=True)]
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in layout.offsets)
    assert all(end <= begin for end, begin in zip(ends_, layout.offsets[1:], strict=False))
    assert layout.size_bytes == (ends_[-1] if sizes else 0)


@pytest.mark.usefixtures("two_threads")
def test_large_bundles_are_written_by_two_threads() -> None:
    sizes, both = (100, 7, 64, 0, 300), threading.Barrier(2, timeout=60)
    threads: list[int] = []
    layout, target = layout_of(sizes), bytearray(layout_of(sizes).size_bytes)

    def filled(number: int, size: int) -> OutgoingTensor:
        def fill(memory: memoryview | DeviceBytes) -> None:
            if size >= 100:  # one large tensor in each half: they wait for each other
                both.wait()
            threads.append(threading.get_ident())
            memory[:] = bytes([number]) * size  # type: ignore[index]

        return OutgoingTensor(Dtype.UINT8, (size,), UNBOUND, fill, on_host=True)

    fill_all([filled(number, size) for number, size in enumerate(sizes, 1)], layout, memoryview(target))

    for number, (offset, size) in enumerate(zip(layout.offsets, sizes, strict=True), 1):
        assert target[offset : offset + size] == bytes([number]) * size
    assert len(set(threads)) == 2


@pytest.mark.usefixtures("two_threads")
def test_large_tensors_of_a_network_are_copied_by_two_threads_bit_for_bit() -> None:
    with torch.inference_mode():
        sent = [torch.randn(shape) for shape in ((2, 3, 64, 64), (1, 7), (2, 300, 30))]
        made = [outgoing_tensor(one, UNBOUND) for one in sent]
        layout = layout_of([one.size_bytes for one in made])
        target = bytearray(layout.size_bytes)
        fill_all(made, layout, memoryview(target))

    assert all(one.on_host for one in made)
    for one, offset in zip(sent, layout.offsets, strict=True):
        assert target[offset : offset + one.nbytes] == one.numpy().tobytes()


@pytest.mark.usefixtures("two_threads")
def test_device_memory_is_written_by_calling_thread() -> None:
    threads: list[int] = []
    layout = layout_of([100, 100])
    sent = [OutgoingTensor(Dtype.UINT8, (100,), UNBOUND, lambda memory: threads.append(threading.get_ident()))] * 2

    fill_all(sent, layout, memoryview(bytearray(layout.size_bytes)))

    assert threads == [threading.get_ident()] * 2


@pytest.mark.usefixtures("two_threads")
def test_failed_fill_is_raised_after_all_writes_end() -> None:
    failed, written = threading.Event(), threading.Event()
    layout = layout_of([100, 100])

    def fail(memory: memoryview | DeviceBytes) -> None:
        failed.set()
        raise ValueError("no")

    def late(memory: memoryview | DeviceBytes) -> None:
        assert failed.wait(60)
        written.set()

    sent = [OutgoingTensor(Dtype.UINT8, (100,), UNBOUND, fill, on_host=True) for fill in (fail, late)]

    with pytest.raises(ValueError, match="no"):
        fill_all(sent, layout, memoryview(bytearray(layout.size_bytes)))
    assert written.is_set()
