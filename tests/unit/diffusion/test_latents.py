"""Latents as stored bytes: what comes back of each format, and what a reader refuses before it makes anything of it."""

import struct
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from pentimento.diffusion.latent_frames import MAGIC, UnknownLatentFormat, framed_file
from pentimento.diffusion.latents import LatentFormat, latent_from_bytes, latent_to_bytes

SHAPE = (1, 4, 8, 8)
UNKNOWN = (("version", 2), ("compression", 2), ("compression", 0), ("reserved", 1))


def noise(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def frame(stream: bytes, size: int, version: int = 1, compression: int = 1, reserved: int = 0) -> bytes:
    """A frame written here by the page, not by the code under test."""
    return b"PLAT" + struct.pack("<BBHI", version, compression, reserved, size) + stream


def compressed(file: bytes) -> bytes:
    return frame(zlib.compress(file, 1), len(file))


@pytest.mark.parametrize(
    ("dtype", "largest", "stored_as", "read"),
    [
        (torch.float32, 1.0, LatentFormat.EXACT, torch.float32),
        (torch.float16, 1.0, LatentFormat.EXACT, torch.float16),
        (torch.bfloat16, 1.0, LatentFormat.EXACT, torch.bfloat16),
        (torch.float32, 1.0, LatentFormat.FLOAT16, torch.float16),
        (torch.float32, 70_000.0, LatentFormat.FLOAT16, torch.float32),
        (torch.bfloat16, 1.0, LatentFormat.FLOAT16, torch.bfloat16),
    ],
)
def test_latent_comes_back_in_half_precision_where_it_fits(
    dtype: torch.dtype, largest: float, stored_as: LatentFormat, read: torch.dtype
) -> None:
    latent = noise(dtype=dtype)
    latent[0, 0, 0, 0] = largest

    found = latent_from_bytes(latent_to_bytes(latent, stored_as), SHAPE)

    assert found.dtype is read
    assert torch.equal(found, latent.to(read))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_latents_of_earlier_versions_are_read(dtype: torch.dtype) -> None:
    latent = noise(dtype=dtype)
    file = save({"latent": latent})

    assert torch.equal(latent_from_bytes(file, SHAPE), latent)
    assert torch.equal(latent_from_bytes(compressed(file), SHAPE), latent)


def test_half_precision_takes_half_of_the_bytes() -> None:
    exact, half = (len(latent_to_bytes(noise(), stored_as)) for stored_as in (LatentFormat.EXACT, LatentFormat.FLOAT16))

    assert exact - half == noise().nelement() * 2


FILE = save({"latent": noise()})
SOUND = compressed(FILE)
NOT_FINITE = noise()
NOT_FINITE[0, 1, 2, 3] = float("nan")


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        *(
            (frame(zlib.compress(FILE), len(FILE), **{name: value}), UnknownLatentFormat, None)
            for name, value in UNKNOWN
        ),
        *(
            (save({"latent": torch.zeros(SHAPE).to(dtype)}), UnknownLatentFormat, None)
            for dtype in (torch.float64, torch.int32, torch.float8_e4m3fn)
        ),
        (save({"latent": torch.zeros(1, 4, 64, 64)}), ValueError, "at most"),
        (SOUND[:6], ValueError, None),
        (SOUND[:-1], ValueError, None),
        (SOUND[:-5] + b"\0\0\0\0\0", ValueError, None),
        (SOUND + b"more", ValueError, None),
        (b"PLAT" + bytes(8), ValueError, None),
        *((latent_to_bytes(NOT_FINITE, stored_as), ValueError, "finite") for stored_as in LatentFormat),
    ],
)
def test_latent_from_bytes_refuses(data: bytes, error: type[Exception], said: str | None) -> None:
    with pytest.raises(error, match=said):
        latent_from_bytes(data, SHAPE)


@pytest.mark.parametrize("size", [len(FILE) - 1, len(FILE) + 1])
def test_framed_file_refuses_wrong_size(size: int) -> None:
    with pytest.raises(ValueError):
        framed_file(frame(zlib.compress(FILE), size), 10_000)


@pytest.mark.slow
def test_a_stream_that_would_grow_beyond_the_latent_is_not_inflated() -> None:
    """A quarter of a gigabyte of zeros in 256 KB; said to be one, and said to be as large as a latent."""
    size = 2**28
    stream = compressed_zeros(size)
    for said in (size, 1000):
        tracemalloc.start()
        with pytest.raises(ValueError, match="bytes"):
            latent_from_bytes(frame(stream, said), SHAPE)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert most < 2**21, "what cannot be consumed of the stream is copied, and no more"


def compressed_zeros(size: int) -> bytes:
    compressor, chunk = zlib.compressobj(9), bytes(2**20)
    return b"".join(compressor.compress(chunk) for _ in range(size // len(chunk))) + compressor.flush()


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=64), framed=st.booleans())
def test_any_bytes_are_refused_with_a_value_error(data: bytes, framed: bool) -> None:
    with pytest.raises(ValueError):
        latent_from_bytes(MAGIC + data if framed else data, SHAPE)
