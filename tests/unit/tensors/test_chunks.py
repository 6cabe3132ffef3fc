"""Bundles cut into chunks, and put together again."""

import pytest

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.chunks import CHUNK_BYTES, ChunkAssembly, chunks_of


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_bundle_is_cut_and_put_together(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    assembly = ChunkAssembly(5, size)

    found = [assembly.add(chunk) for chunk in chunks_of(5, memoryview(data))]

    assert all(part is None for part in found[:-1])
    assert found[-1] is not None
    assert bytes(found[-1]) == data


@pytest.mark.parametrize(
    "chunk",
    [
        pb.TensorChunk(bundle_id=2, data=b"12345678", last=True),
        pb.TensorChunk(bundle_id=1, offset_bytes=1, data=b"1234"),
        pb.TensorChunk(bundle_id=1, data=b"123456789", last=True),
        pb.TensorChunk(bundle_id=1, data=b"1234", last=True),
        pb.TensorChunk(bundle_id=1, data=b"12345678"),
        pb.TensorChunk(bundle_id=1),
    ],
)
def test_a_chunk_that_does_not_go_on_is_refused(chunk: pb.TensorChunk) -> None:
    with pytest.raises(InvalidArgument):
        ChunkAssembly(1, 8).add(chunk)
