"""What goes wrong in decoding, as the errors that a request gets."""

import io
from typing import Any

import pytest
import torch
from PIL import Image

from pentimento.domain.errors import Internal, ResourceExhausted
from services.unet_worker.attempts.finishing import Finisher

LATENT = torch.zeros(1, 4, 8, 8)


class Decoder:
    """Raises the first of `errors` at each call, as long as there is one."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def decode_latent(self, latent: torch.Tensor) -> torch.Tensor:
        if self._errors:
            raise self._errors.pop(0)
        return torch.zeros(1, 3, 16, 16, dtype=torch.float16)


def finisher(*errors: Exception) -> Finisher:
    model: Any = Decoder(*errors)
    return Finisher(model, preview_side_px=8)


def test_a_picture_in_half_precision_becomes_a_png() -> None:
    picture = finisher().finish(LATENT, "png", keep_png=True).result()

    assert picture.image.startswith(b"\x89PNG")
    assert picture.started_at <= picture.decoded_at <= picture.encoded_at


def test_a_file_keeps_as_much_as_it_is_asked_to() -> None:
    jpegs = [finisher().finish(LATENT, "jpeg", True, quality).result() for quality in (None, 75, 100, 0)]

    tables = [Image.open(io.BytesIO(one.image)).quantization for one in jpegs]  # type: ignore[attr-defined]
    assert tables[0] == tables[1]
    assert {factor for table in tables[2].values() for factor in table} == {1}
    assert {factor for table in tables[3].values() for factor in table} == {255}
    assert all(one.png.startswith(b"\x89PNG") for one in jpegs)


def test_a_decoder_without_memory_fails_its_own_picture_alone() -> None:
    finishing = finisher(torch.OutOfMemoryError("no memory"))

    with pytest.raises(ResourceExhausted, match="memory"):
        finishing.finish(LATENT, "png", keep_png=False).result()
    assert finishing.finish(LATENT, "png", keep_png=False).result().image


def test_other_errors_of_the_decoder_are_not_taken_for_that() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        finisher(RuntimeError("shapes differ")).finish(LATENT, "png", keep_png=False).result()


def test_a_latent_that_is_not_finite_is_never_decoded() -> None:
    with pytest.raises(Internal, match="finite"):
        finisher().finish(LATENT / 0.0, "png", keep_png=False).result()
