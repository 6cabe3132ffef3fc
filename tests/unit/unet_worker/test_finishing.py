"""What goes wrong in decoding, as the errors that a request gets."""

import asyncio
import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from pentimento.domain.errors import Internal, ResourceExhausted
from services.unet_worker.attempts import finishing
from services.unet_worker.attempts.finishing import Finisher

LATENT = torch.zeros(1, 4, 8, 8)


class Decoder:
    """Raises the first of `errors` at each call, as long as there is one."""

    def __init__(self, *errors: Exception, pixels: torch.Tensor | None = None) -> None:
        self._errors = list(errors)
        self._pixels = torch.zeros(1, 3, 16, 16, dtype=torch.float16) if pixels is None else pixels

    def decode_latent(self, latent: torch.Tensor) -> torch.Tensor:
        if self._errors:
            raise self._errors.pop(0)
        return self._pixels


def finisher(*errors: Exception, pixels: torch.Tensor | None = None) -> Finisher:
    model: Any = Decoder(*errors, pixels=pixels)
    return Finisher(model, preview_side_px=8)


async def test_a_picture_in_half_precision_becomes_a_png() -> None:
    picture = await finisher().finish(LATENT, "png", keep_png=True)

    assert picture.image.startswith(b"\x89PNG")
    assert picture.started_at <= picture.decoded_at <= picture.encoded_at


async def test_a_file_keeps_as_much_as_it_is_asked_to() -> None:
    jpegs = [await finisher().finish(LATENT, "jpeg", True, quality) for quality in (None, 75, 100, 0)]

    tables = [Image.open(io.BytesIO(one.image)).quantization for one in jpegs]  # type: ignore[attr-defined]
    assert tables[0] == tables[1]
    assert {factor for table in tables[2].values() for factor in table} == {1}
    assert {factor for table in tables[3].values() for factor in table} == {255}
    assert all(one.png.startswith(b"\x89PNG") for one in jpegs)


async def test_a_decoder_without_memory_fails_its_own_picture_alone() -> None:
    short = finisher(torch.OutOfMemoryError("no memory"))

    with pytest.raises(ResourceExhausted, match="memory"):
        await short.finish(LATENT, "png", keep_png=False)
    assert (await short.finish(LATENT, "png", keep_png=False)).image


async def test_other_errors_of_the_decoder_are_not_taken_for_that() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        await finisher(RuntimeError("shapes differ")).finish(LATENT, "png", keep_png=False)


async def test_a_latent_that_is_not_finite_is_never_decoded() -> None:
    with pytest.raises(Internal, match="finite"):
        await finisher().finish(LATENT / 0.0, "png", keep_png=False)


async def test_pixels_that_are_not_finite_are_no_picture() -> None:
    with pytest.raises(Internal, match="autoencoder"):
        await finisher(pixels=torch.full((1, 3, 16, 16), torch.nan)).finish(LATENT, "png", keep_png=False)


async def test_the_next_picture_is_decoded_while_one_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's file is made once the second one's latent is in the decoder."""
    second_is_decoded = threading.Event()
    decoder = Decoder()
    model: Any = SimpleNamespace(decode_latent=lambda latent: _noted(decoder, latent, second_is_decoded))
    monkeypatch.setattr(finishing, "png_of_rows", lambda rows: str(second_is_decoded.wait(60)).encode())
    both = Finisher(model, preview_side_px=8)

    pictures = await asyncio.gather(both.finish(LATENT, "png", False), both.finish(LATENT + 1, "png", False))

    assert [picture.image for picture in pictures] == [b"True", b"True"]


def _noted(decoder: Decoder, latent: torch.Tensor, second: threading.Event) -> torch.Tensor:
    if latent.any():
        second.set()
    return decoder.decode_latent(latent)
