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


def noise(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def frame(stream: bytes, size: int, version: int = 1, compression: int = 1, reserved: int = 0) -> bytes:
    """A frame written here by the page, not by the code under test."""
    return b"PLAT" + struct.pack("<BBHI", version, compression, reserved, size) + stream


def compressed(file: bytes) -> bytes:
    return frame(zlib.compress(file, 1), len(file))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_exact_latent_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    latent = noise(dtype=dtype)

    found = latent_from_bytes(latent_to_bytes(latent), SHAPE)

    assert found.dtype is dtype
    assert torch.equal(found, latent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_compressed_latent_of_an_earlier_version_is_read(dtype: torch.dtype) -> None:
    latent = noise(dtype=dtype)

    assert torch.equal(latent_from_bytes(compressed(save({"latent": latent})), SHAPE), latent)


def test_float32_comes_back_rounded_to_half_precision() -> None:
    latent = noise()

    assert torch.equal(latent_from_bytes(latent_to_bytes(latent, LatentFormat.FLOAT16), SHAPE), latent.half())


def test_bfloat16_is_never_turned_into_float16() -> None:
    latent = noise(dtype=torch.bfloat16)

    assert torch.equal(latent_from_bytes(latent_to_bytes(latent, LatentFormat.FLOAT16), SHAPE), latent)


def test_what_half_precision_cannot_hold_is_kept_as_it_is() -> None:
    latent = noise()
    latent[0, 0, 0, 0] = 70_000.0

    assert torch.equal(latent_from_bytes(latent_to_bytes(latent, LatentFormat.FLOAT16), SHAPE), latent)


def test_half_precision_takes_half_of_the_bytes() -> None:
    exact, half = (len(latent_to_bytes(noise(), stored_as)) for stored_as in (LatentFormat.EXACT, LatentFormat.FLOAT16))

    assert exact - half == noise().nelement() * 2


def test_a_file_of_before_there_were_formats_is_read() -> None:
    latent = noise()

    assert torch.equal(latent_from_bytes(save({"latent": latent}), SHAPE), latent)


@pytest.mark.parametrize("changes", [{"version": 2}, {"compression": 2}, {"compression": 0}, {"reserved": 1}])
def test_another_version_or_compression_is_unknown_and_not_damaged(changes: dict[str, int]) -> None:
    file = save({"latent": noise()})

    with pytest.raises(UnknownLatentFormat):
        latent_from_bytes(frame(zlib.compress(file), len(file), **changes), SHAPE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float8_e4m3fn])
def test_another_element_type_is_unknown(dtype: torch.dtype) -> None:
    with pytest.raises(UnknownLatentFormat):
        latent_from_bytes(save({"latent": torch.zeros(1, 4, 4, 4).to(dtype)}), (1, 4, 4, 4))


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


def test_a_file_that_no_latent_of_that_shape_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        latent_from_bytes(save({"latent": torch.zeros(1, 4, 64, 64)}), SHAPE)


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda sound: sound[:6],
        lambda sound: sound[:-1],
        lambda sound: sound[:-5] + b"\0\0\0\0\0",
        lambda sound: sound + b"more",
        lambda sound: b"PLAT" + bytes(8),
    ],
)
def test_a_damaged_frame_is_a_value_error(spoilt: object) -> None:
    sound = compressed(save({"latent": noise()}))

    with pytest.raises(ValueError):
        latent_from_bytes(spoilt(sound), SHAPE)  # type: ignore[operator]


@pytest.mark.parametrize("said", [-1, 1])
def test_a_frame_whose_size_is_wrong_is_refused(said: int) -> None:
    file = save({"latent": noise()})

    with pytest.raises(ValueError):
        framed_file(frame(zlib.compress(file), len(file) + said), 10_000)


@pytest.mark.parametrize("stored_as", list(LatentFormat))
def test_values_that_are_not_finite_are_refused_in_every_format(stored_as: LatentFormat) -> None:
    latent = noise()
    latent[0, 1, 2, 3] = float("nan")

    with pytest.raises(ValueError, match="finite"):
        latent_from_bytes(latent_to_bytes(latent, stored_as), SHAPE)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=64), framed=st.booleans())
def test_any_bytes_are_refused_with_a_value_error(data: bytes, framed: bool) -> None:
    with pytest.raises(ValueError):
        latent_from_bytes(MAGIC + data if framed else data, SHAPE)
