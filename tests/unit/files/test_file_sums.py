"""Files are hashed once, and verified by blocks whenever they are read."""

import hashlib
import os
from pathlib import Path

import pytest
from blake3 import blake3

from pentimento.files import file_sums
from pentimento.files.file_sums import BLOCK_BYTES, CorruptComponent, FileSums, read_blocks, read_verified


@pytest.fixture(scope="module")
def data() -> bytes:
    return os.urandom(BLOCK_BYTES + 1000)


def test_file_is_hashed_once_over_processes_until_it_changes(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "weights").write_bytes(data)
    found = FileSums(tmp_path / "sums").of(file)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.blocks == (blake3(data[:BLOCK_BYTES]).hexdigest(), blake3(data[BLOCK_BYTES:]).hexdigest())

    monkeypatch.setattr(file_sums, "sha256", forbidden := FirstBytes(hashlib.sha256))
    assert FileSums(tmp_path / "sums").of(file) == found
    assert forbidden.size_bytes < 1000, "only names of files are hashed"
    monkeypatch.undo()
    file.write_bytes(data[:-1] + b"x")
    assert FileSums(tmp_path / "sums").of(file).sha256 != found.sha256


class FirstBytes:
    """Count the bytes that sha256 sees."""

    def __init__(self, real: object) -> None:
        self._real = real
        self.size_bytes = 0

    def __call__(self, data: bytes = b"") -> "hashlib._Hash":
        self.size_bytes += len(data)
        return hashlib.sha256(data)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "block 1 of 2"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "block 0 of 2"),
        (lambda data: data[:-1], "bytes, expected"),
    ],
    ids=["last block", "first block", "cut"],
)
def test_changed_file_is_refused_with_its_block(tmp_path: Path, data: bytes, change: object, named: str) -> None:
    (file := tmp_path / "weights").write_bytes(data)
    expected = FileSums().of(file)
    assert read_verified(file, expected) == data
    file.write_bytes(change(data))  # type: ignore[operator]

    with pytest.raises(CorruptComponent, match=named) as raised:
        list(read_blocks(file, expected))
    assert raised.value.reason == "COMPONENT_CORRUPT"
