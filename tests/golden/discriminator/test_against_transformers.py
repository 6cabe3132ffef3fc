"""Compare scores of images with transformers' own classifier, with Platt's line computed by hand."""

import functools
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import AutoModelForImageClassification
from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil

from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.images.decoding import decode
from tests.support.images import png_of

DIRECTORY = Path(__file__).parents[3] / "zoo" / "weights" / "tiny-discriminator"


@functools.cache
def ours() -> PictureDiscriminator:
    return open_discriminator(DIRECTORY)


@functools.cache
def theirs() -> Any:
    return AutoModelForImageClassification.from_pretrained(DIRECTORY).float().eval()


def ellipse(number: int, size: tuple[int, int] = (64, 64)) -> bytes:
    image = Image.new("RGB", size, (40 * number % 256, 128, 200))
    width, height = size
    ImageDraw.Draw(image).ellipse((8 + number, 10, width - 20, height - 8 - 3 * number), fill=(250, 30 * number, 10))
    return png_of(image)


def score_by_hand(encoded: bytes) -> float:
    """Return the probability of the label `real`: its log odds through the line of the configuration."""
    processor = EfficientNetImageProcessorPil.from_pretrained(DIRECTORY)
    pixels = processor(Image.open(io.BytesIO(encoded)).convert("RGB"), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        generated, real = theirs()(pixel_values=pixels).logits[0].double().tolist()
    line = json.loads((DIRECTORY / "config.json").read_text())["pentimento_calibration"]
    return 1 / (1 + math.exp(-(line["slope"] * (real - generated) + line["intercept"])))


def score_by_us(*encoded: bytes) -> list[float]:
    return ours().confidences([decode(data, "image", ours().pixels) for data in encoded])


@pytest.mark.parametrize("size", [(64, 64), (96, 96), (40, 72)])
def test_score_equals_transformers(size: tuple[int, int]) -> None:
    encoded = ellipse(3, size)

    assert score_by_us(encoded)[0] == pytest.approx(score_by_hand(encoded), abs=1e-5)


def test_scores_of_a_batch_equal_single_scores() -> None:
    images = [ellipse(number) for number in range(5)]

    found = score_by_us(*images)

    assert found == pytest.approx([score_by_hand(encoded) for encoded in images], abs=1e-5)
    assert len({round(score, 6) for score in found}) > 1
