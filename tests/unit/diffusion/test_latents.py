"""Latents as stored bytes: each format comes back, and wrong bytes are rejected before they are parsed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from pentimento.devices.choices import LatentFormat
from pentimento.diffusion.images import UnknownLatentFormat, latent_from_bytes, latent_to_bytes

SHAPE = (1, 4, 8, 8)


def noise(seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


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


def test_half_precision_takes_half_of_the_bytes() -> None:
    exact, half = (len(latent_to_bytes(noise(), stored_as)) for stored_as in (LatentFormat.EXACT, LatentFormat.FLOAT16))

    assert exact - half == noise().nelement() * 2


FILE = save({"latent": noise()})
NOT_FINITE = noise()
NOT_FINITE[0, 1, 2, 3] = float("nan")


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        *(
            (save({"latent": torch.zeros(SHAPE).to(dtype)}), UnknownLatentFormat, None)
            for dtype in (torch.float64, torch.int32, torch.float8_e4m3fn)
        ),
        (save({"latent": torch.zeros(1, 4, 64, 64)}), ValueError, "at most"),
        (FILE[:6], ValueError, None),
        (FILE[:-1], ValueError, None),
        (FILE + b"more", ValueError, None),
        *((latent_to_bytes(NOT_FINITE, stored_as), ValueError, "finite") for stored_as in LatentFormat),
    ],
)
def test_latent_from_bytes_refuses(data: bytes, error: type[Exception], said: str | None) -> None:
    with pytest.raises(error, match=said):
        latent_from_bytes(data, SHAPE)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=64))
def test_any_bytes_are_refused_with_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        latent_from_bytes(data, SHAPE)
