"""Send messages between two ends of one host; names disappear with either end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from pentimento.tensors.lines import MAX_MESSAGE_BYTES, make_line, open_line
from pentimento.tensors.receiving import TensorReceiver
from pentimento.tensors.regions import RegionDirectory, RegionSize
from pentimento.tensors.step_lines import open_asking_line
from pentimento.wire.tensors import UNBOUND
from tests.support.open_files import files_open_under


def test_messages_come_whole_and_in_order_in_both_directions(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    asking = open_line(directory, told)

    for number in range(3):
        assert asking.send(b"ask %d" % number)
    assert answering.send(b"")

    assert answering.read() == [b"ask 0", b"ask 1", b"ask 2"]
    assert asking.read() == [b""]
    assert answering.read() == asking.read() == []


def test_a_message_that_came_in_part_waits_for_its_rest(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    asking = open_line(directory, told)
    whole = (5).to_bytes(4, "little") + b"hello"

    os.write(asking._outward.descriptor, whole + whole[:6])
    assert answering.read() == [b"hello"]
    os.write(asking._outward.descriptor, whole[6:])

    assert answering.read() == [b"hello"]


def test_names_of_line_disappear_once_opened_or_with_maker(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    assert directory.region_count() == 2

    open_line(directory, told)
    assert directory.region_count() == 0
    with pytest.raises(FailedPrecondition):
        open_line(directory, told)
    answering.close()

    make_line(directory)[0].close()
    assert directory.region_count() == 0


def test_sweep_removes_files_of_killed_maker_only(tmp_path: Path, directory: RegionDirectory) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from pentimento.tensors.lines import *; "
        "made = make_line(RegionDirectory(Path(sys.argv[1]))); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "shared")], check=False)
    kept, told = make_line(directory)
    assert directory.region_count() == 4

    directory.create(RegionSize(100, 1)).close()

    assert directory.region_count() == 2
    assert open_line(directory, told).send(b"there")
    assert kept.read() == [b"there"]


def test_a_full_line_takes_nothing_and_loses_nothing(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    asking = open_line(directory, told)
    sent = 0
    while asking.send(bytes(MAX_MESSAGE_BYTES)):
        sent += 1

    read = 0
    while messages := answering.read():
        read += len(messages)
    assert read == sent > 1
    assert asking.send(b"again")


def test_a_closed_line_takes_and_gives_nothing(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    asking = open_line(directory, told)
    asking.send(b"late")
    answering.close()
    answering.close()

    assert answering.read() == []
    assert not answering.send(b"more")


def test_wrong_message_is_rejected(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    asking = open_line(directory, told)
    with pytest.raises(InvalidArgument):
        asking.send(bytes(MAX_MESSAGE_BYTES + 1))

    os.write(asking._outward.descriptor, b"\xff" * 8)

    with pytest.raises(InvalidArgument):
        answering.read()


def test_open_line_refuses_other_names(directory: RegionDirectory) -> None:
    (directory.path / ("0" * 32)).write_bytes(b"a file")
    for name in ("../shared", "", "0" * 31, "0" * 32):
        _, told = make_line(directory)

        with pytest.raises((FailedPrecondition, InvalidArgument)):
            open_line(directory, pb.Line(asks_id=told.asks_id, answers_id=name))
        assert (directory.path / told.asks_id).exists()


def test_a_directory_that_takes_no_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(ResourceExhausted):
        make_line(RegionDirectory(tmp_path / "absent"))


def test_line_with_invalid_slots_is_closed(directory: RegionDirectory) -> None:
    answering, told = make_line(directory)
    slots = pb.SharedMemoryRegion(region_id="0" * 32, slot_size_bytes=0, slot_count=2)
    before = files_open_under(directory.path)

    with pytest.raises(InvalidArgument):
        open_asking_line(
            pb.StepLine(line=told, steps=slots),
            directory,
            TensorReceiver(),
            lambda _: UNBOUND,
            lambda _: UNBOUND,
            lambda _: [],
        )

    assert sorted(files_open_under(directory.path)) == sorted(before)
    assert len(before) > 0
    answering.close()
