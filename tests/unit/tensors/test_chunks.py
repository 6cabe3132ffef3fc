"""Bundles cut into chunks, and chunks framed by hand against protobuf's own reading and writing."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.chunks import CHUNK_BYTES, Chunk, ChunkAssembly, chunk_in, chunks_of, reading_chunks

FIELD = pb.StreamResidualsResponse.CHUNK_FIELD_NUMBER
CHUNKS = st.builds(Chunk, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.binary(max_size=300), st.booleans())


def fields(chunk: Chunk | tensor_pb.TensorChunk) -> tuple[int, int, bytes, bool]:
    return chunk.bundle_id, chunk.offset_bytes, bytes(chunk.data), chunk.last


@given(chunk=CHUNKS)
@example(chunk=Chunk(0, 0, b"", False))
@example(chunk=Chunk(127, 128, bytes(1 << 20), True))
def test_protobuf_reads_framed_chunk(chunk: Chunk) -> None:
    message = pb.StreamResidualsResponse.FromString(chunk.framed(FIELD))

    assert message.WhichOneof("message") == "chunk"
    assert fields(message.chunk) == fields(chunk) == fields(chunk.message())


@given(chunk=CHUNKS)
@example(chunk=Chunk(0, 0, b"", False))
def test_chunk_of_either_writer_is_read(chunk: Chunk) -> None:
    by_protobuf = pb.StreamResidualsResponse(chunk=chunk.message()).SerializeToString()

    for data in (by_protobuf, chunk.framed(FIELD)):
        found = chunk_in(data, FIELD)
        assert found is not None
        assert fields(found) == fields(chunk)


def test_read_chunk_shares_memory_of_message() -> None:
    data = Chunk(1, 2, b"abc", True).framed(FIELD)

    found = chunk_in(data, FIELD)

    assert found is not None
    assert isinstance(found.data, memoryview)
    assert found.data.obj is data


@given(data=st.one_of(st.binary(max_size=60), CHUNKS.map(lambda chunk: chunk.framed(FIELD))), cut=st.integers(0, 400))
@example(data=Chunk(1, 1, b"12", True).framed(FIELD), cut=5)
def test_whatever_is_read_protobuf_reads_the_same(data: bytes, cut: int) -> None:
    for one in (data, data[:cut], data + data[:cut]):
        found = chunk_in(one, FIELD)
        if found is not None:
            assert fields(found) == fields(pb.StreamResidualsResponse.FromString(one).chunk)


def test_anything_else_is_left_to_protobuf() -> None:
    framed = Chunk(1, 0, b"12", True).framed
    for data in (
        pb.StreamResidualsResponse(opened=pb.StreamOpened()).SerializeToString(),
        framed(FIELD + 1),
        framed(FIELD) + b"\x08\x01",
        framed(FIELD)[:-1],
        pb.StreamResidualsResponse(chunk=tensor_pb.TensorChunk(offset_bytes=-1)).SerializeToString(),
        # The offset twice, where protobuf takes the last; then a field that no chunk has.
        b"\x1a\x04\x10\x01\x10\x02",
        b"\x1a\x02\x28\x01",
        b"",
    ):
        assert chunk_in(data, FIELD) is None


def test_a_reader_takes_chunks_by_hand_and_all_else_by_protobuf() -> None:
    read = reading_chunks(pb.StreamResidualsResponse.FromString, FIELD)
    opened = pb.StreamResidualsResponse(opened=pb.StreamOpened(stream_epoch=3))

    chunk, other = read(Chunk(1, 0, b"12", True).framed(FIELD)), read(opened.SerializeToString())

    assert chunk.WhichOneof("message") == "chunk"
    assert fields(chunk.chunk) == (1, 0, b"12", True)
    assert other == opened


def test_bundle_is_cut_and_put_together() -> None:
    for size in (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES):
        data = bytes(index % 251 for index in range(size))
        assembly = ChunkAssembly(5, size)

        found = [assembly.add(chunk) for chunk in chunks_of(5, memoryview(data))]

        assert all(part is None for part in found[:-1])
        assert found[-1] is not None
        assert bytes(found[-1]) == data


def test_chunk_out_of_order_is_rejected() -> None:
    for chunk in (
        tensor_pb.TensorChunk(bundle_id=2, data=b"12345678", last=True),
        tensor_pb.TensorChunk(bundle_id=1, offset_bytes=1, data=b"1234"),
        tensor_pb.TensorChunk(bundle_id=1, data=b"123456789", last=True),
        tensor_pb.TensorChunk(bundle_id=1, data=b"1234", last=True),
        tensor_pb.TensorChunk(bundle_id=1, data=b"12345678"),
        tensor_pb.TensorChunk(bundle_id=1),
    ):
        with pytest.raises(InvalidArgument):
            ChunkAssembly(1, 8).add(chunk)
