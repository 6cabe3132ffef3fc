"""Files that are verified where they are mapped."""

import fcntl
import gc
import os
import random
from pathlib import Path

import pytest

from pentimento.files import file_sums, mapped_file
from pentimento.files.file_sums import CorruptComponent, FileSums
from pentimento.files.mapped_file import MappedFile

BLOCK = 1000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (file_sums, mapped_file):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (path := tmp_path / "file").write_bytes(random.Random(1).randbytes(3 * BLOCK + 10))
    return path


def damage(file: Path, offset: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def test_verified_blocks_equal_file(file: Path) -> None:
    mapped = MappedFile(file, FileSums().of(file))

    mapped.verify(range(4))
    mapped.wait(range(4))

    assert mapped.data[:] == file.read_bytes()


@pytest.mark.parametrize(("offset", "index"), [(0, 0), (BLOCK - 1, 0), (2 * BLOCK, 2), (3 * BLOCK + 9, 3)])
def test_block_with_another_byte_is_named_and_the_others_pass(file: Path, offset: int, index: int) -> None:
    expected = FileSums().of(file)
    damage(file, offset)
    mapped = MappedFile(file, expected, "the disk")
    mapped.verify(range(4))

    mapped.wait(one for one in range(4) if one != index)
    with pytest.raises(CorruptComponent, match=f"file: the disk has other bytes .* block {index} of 4"):
        mapped.wait([index])


def test_file_of_another_size_is_rejected(file: Path) -> None:
    expected = FileSums().of(file)
    os.truncate(file, BLOCK)

    with pytest.raises(CorruptComponent, match="1000 bytes, expected 3010"):
        MappedFile(file, expected)


def test_written_pages_do_not_reach_the_file(file: Path) -> None:
    before = file.read_bytes()
    mapped = MappedFile(file, FileSums().of(file))

    mapped.data[0:4] = b"mine"

    assert (mapped.data[0:4], file.read_bytes()) == (b"mine", before)


def test_file_is_in_use_while_its_bytes_are(file: Path) -> None:
    def is_free() -> bool:
        with file.open("rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    mapped = MappedFile(file, FileSums().of(file))
    kept = memoryview(mapped.data)[:10]
    del mapped
    gc.collect()

    assert not is_free()
    del kept
    gc.collect()
    assert is_free()
