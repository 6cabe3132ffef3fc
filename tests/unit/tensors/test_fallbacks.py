"""Send tensors in chunks without shared memory; a metric counts the reasons."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from prometheus_client import REGISTRY

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.tensors.cuda import outgoing_tensor, tensor_over
from pentimento.tensors.receiving import ExpectedTensor, TensorReceiver, open_receiver
from pentimento.tensors.regions import RegionDirectory
from pentimento.tensors.sending import SLOT_COUNT, TensorSender, common_transports, open_sender, transport_offer
from pentimento.tensors.step_lines import make_answering_line
from pentimento.wire.tensors import Binding, Dtype
from tests.support.small_disks import mounted_tmpfs

BINDING = Binding("request", 7, 3, "mid_block", "sha256:model", 2)
TENSOR = torch.randn(2, 3, 64, 64)
SIZE_BYTES = TENSOR.numel() * TENSOR.itemsize
EXPECTED = ExpectedTensor(Dtype.FLOAT32, tuple(TENSOR.shape), BINDING)
REASONS = ("not_shared", "no_space", "not_opened", "no_free_slot", "no_line")


def counted() -> dict[str, float]:
    samples = {
        reason: REGISTRY.get_sample_value("pentimento_tensor_fallbacks_total", {"reason": reason}) or 0.0
        for reason in REASONS
    }
    return {reason: count for reason, count in samples.items() if count}


class Counted:
    """Fallbacks since its creation, by reason."""

    def __init__(self) -> None:
        self._before = counted()

    def since(self) -> dict[str, float]:
        now = {reason: count - self._before.get(reason, 0.0) for reason, count in counted().items()}
        return {reason: count for reason, count in now.items() if count}


@pytest.fixture
def fallbacks() -> Counted:
    return Counted()


@pytest.fixture
def full_directory(tmp_path: Path) -> Iterator[RegionDirectory]:
    """Return a directory on a file system without room for two slots."""
    with mounted_tmpfs(tmp_path, SIZE_BYTES) as mount:
        yield private_directory(mount / "shared")


def private_directory(path: Path) -> RegionDirectory:
    path.mkdir(mode=0o700)
    return RegionDirectory(path)


def assert_sent_in_chunks(sender: TensorSender) -> None:
    packed = sender.pack([outgoing_tensor(TENSOR, BINDING)])
    receiver = TensorReceiver()
    found = receiver.begin(packed.tensors, [EXPECTED])
    for chunk in packed.chunks:
        found = receiver.add(chunk.message())
    assert packed.tensors[0].WhichOneof("payload") == "chunks"
    assert found is not None and found.ack is None
    assert torch.equal(tensor_over(found.tensors[0]), TENSOR)


def test_the_disk_of_a_test_that_fails_is_unmounted(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), mounted_tmpfs(tmp_path, SIZE_BYTES) as disk, (disk / "open").open("w"):
        raise ZeroDivisionError

    assert not (tmp_path / "disk").is_mount()


def test_where_everything_is_there_nothing_is_counted(directory: RegionDirectory, fallbacks: Counted) -> None:
    sender, region = open_sender(transport_offer(directory), directory, [SIZE_BYTES])

    packed = sender.pack([outgoing_tensor(TENSOR, BINDING)])

    assert region is not None
    assert packed.tensors[0].WhichOneof("payload") == "shared_memory"
    assert fallbacks.since() == {}


def test_shared_memory_that_is_full(full_directory: RegionDirectory, fallbacks: Counted) -> None:
    sender, region = open_sender(transport_offer(full_directory), full_directory, [SIZE_BYTES])

    assert (region, full_directory.region_count()) == (None, 0)
    assert_sent_in_chunks(sender)
    assert fallbacks.since() == {"no_space": 1}


def test_ends_without_common_directory_send_chunks(
    tmp_path: Path, directory: RegionDirectory, fallbacks: Counted
) -> None:
    ours, theirs = transport_offer(directory), transport_offer(private_directory(tmp_path / "other"))

    sender, region = open_sender(theirs, directory, [SIZE_BYTES])

    for offers in ((theirs, ours), (pb.TensorTransportOffer(), ours), (transport_offer(None), transport_offer(None))):
        assert common_transports(*offers) == (pb.TENSOR_TRANSPORT_CHUNKS,)
    assert region is None
    assert_sent_in_chunks(sender)
    assert fallbacks.since() == {"not_shared": 1}


def test_region_that_the_other_end_cannot_map_is_replaced_by_chunks(
    tmp_path: Path, directory: RegionDirectory, fallbacks: Counted
) -> None:
    sender, region = open_sender(transport_offer(directory), directory, [SIZE_BYTES])
    _, told = open_receiver(region, private_directory(tmp_path / "other"))
    assert told is not None and not told.opened

    sender.region_opened(told)

    assert directory.region_count() == 0
    assert_sent_in_chunks(sender)
    assert fallbacks.since() == {"not_opened": 1}


def test_slots_that_are_all_in_use(directory: RegionDirectory, fallbacks: Counted) -> None:
    sender, _ = open_sender(transport_offer(directory), directory, [SIZE_BYTES])
    for _ in range(SLOT_COUNT):
        sender.pack([outgoing_tensor(TENSOR, BINDING)])

    assert_sent_in_chunks(sender)
    assert fallbacks.since() == {"no_free_slot": 1}


def test_a_line_that_there_is_no_room_for(tmp_path: Path, fallbacks: Counted) -> None:
    """The region fills the file system before the slots of the steps' latents."""
    with mounted_tmpfs(tmp_path, SLOT_COUNT * (SIZE_BYTES + (16 << 10))) as mount:
        directory = private_directory(mount / "shared")
        sender, region = open_sender(transport_offer(directory), directory, [SIZE_BYTES])

        made = make_answering_line(directory, sender, lambda step: EXPECTED, lambda step: BINDING)

        assert region is not None and sender.has_region
        assert made == (None, None)
        assert fallbacks.since() == {"no_line": 1}
        sender.close()


def test_end_without_request_for_shared_memory_is_not_counted(directory: RegionDirectory, fallbacks: Counted) -> None:
    sender, _ = open_sender(pb.TensorTransportOffer(), directory, [SIZE_BYTES])

    assert_sent_in_chunks(sender)
    assert fallbacks.since() == {}
