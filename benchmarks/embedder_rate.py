"""Measure embeddings per second of one processor core against the image rate of a device that they serve.

Encoders of real sizes with random weights, and the zoo's, in process, on one thread: texts of 20 tokens and
preprocessed images, alone and in batches of 16, in drawn orders. The device is an H200 with Stable Diffusion 1.5's size
at 30 steps under load (`gpu_served`'s result). A request needs a text's embedding, and one of its image if the cache
keeps images.

Not shown: decoding and preprocessing of images, RPCs, the memo of repeated prompts, encoders on a GPU.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from lab.runs.measure import Figure, informative, interleave, measured, parse_options, publish, seconds_of
from services.embedder.dual_encoder import DualEncoder, EncoderConfig, expected_shapes
from services.embedder.model import open_model
from services.embedder.siglip_encoder import SiglipEncoder, siglip_shapes
from services.embedder.tower import EncoderCheckpoint, TowerConfig
from zoo.registry import WEIGHTS

SERVED = Path(__file__).parent / "results" / "gpu_served.json"
IMAGE = "SD 1.5, 30 steps, float16, as many as go: ours, served, each"
TOKENS, BATCH = 20, 16
CPU = torch.device("cpu")
Encoder = DualEncoder | SiglipEncoder
C = TypeVar("C")


def main() -> int:
    options = parse_options("embedder_rate", __doc__, add_options)
    rounds = 2 if options.quick else options.rest["rounds"]
    torch.set_num_threads(1)
    images_per_s = 1000.0 / served_ms()
    figures = [Figure("images/s of the device", round(images_per_s, 2), informative("1/s"))]
    for name, (encoder, side) in encoders().items():
        figures += encoder_figures(name, encoder, side, rounds, images_per_s)
    return publish(options, figures, notes={"rounds": rounds, "threads": 1, "tokens": TOKENS})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7)


def served_ms() -> float:
    """Return the milliseconds of an image on the device, by an earlier result."""
    figures = json.loads(SERVED.read_text())["figures"]
    found: float = next(one["figure"] for one in figures if one["name"] == IMAGE)
    return found


def encoders() -> dict[str, tuple[Encoder, int]]:
    """Return each encoder with the side of its images in pixels."""
    zoo = open_model(WEIGHTS / "tiny-clip").encoder
    assert isinstance(zoo, DualEncoder)
    return {
        "tiny-clip": (zoo, 64),
        "CLIP ViT-B/32": (clip(512, 8, 12, 768, 12, 12, 32), 224),
        "CLIP ViT-L/14": (clip(768, 12, 12, 1024, 16, 24, 14), 224),
        "SigLIP B/16": (siglip(), 224),
    }


def clip(text: int, text_heads: int, text_layers: int, vision: int, heads: int, layers: int, patch: int) -> DualEncoder:
    """Return CLIP with random weights: widths, heads and layers of both towers, and the side of a patch."""
    config = EncoderConfig(
        text=TowerConfig(text, 4 * text, text_layers, text_heads, 1e-5, "quick_gelu"),
        vision=TowerConfig(vision, 4 * vision, layers, heads, 1e-5, "quick_gelu"),
        vocab_size=49408,
        max_position_embeddings=77,
        eos_token_id=49407,
        num_channels=3,
        image_size=224,
        patch_size=patch,
        projection_dim=text,
    )
    return DualEncoder(checkpoint(config, expected_shapes(config)), CPU)


def siglip() -> SiglipEncoder:
    """Return SigLIP of the base size with random weights."""
    tower = TowerConfig(768, 3072, 12, 12, 1e-6, "gelu_pytorch_tanh")
    config = EncoderConfig(tower, tower, 32000, 64, 0, 3, 224, 16, 768)
    return SiglipEncoder(checkpoint(config, siglip_shapes(config)), 1, CPU)


def checkpoint(config: C, shapes: Mapping[str, tuple[int, ...]]) -> EncoderCheckpoint[C]:
    """Return random weights by tensor name and shape."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}
    return EncoderCheckpoint("random", Path(), config, tensors, "")


@torch.inference_mode()
def encoder_figures(name: str, encoder: Encoder, side: int, rounds: int, images_per_s: float) -> Iterator[Figure]:
    """Measure an encoder, and report its rates and the devices that a core serves."""
    text, pixels = list(range(2, TOKENS + 2)), torch.rand(BATCH, 3, side, side)
    calls: dict[str, Callable[[], Tensor]] = {
        "texts, alone": lambda: encoder.embed_tokens([text]),
        f"texts, batches of {BATCH}": lambda: encoder.embed_tokens([text] * BATCH),
        "images, alone": lambda: encoder.embed_pixels(pixels[:1]),
        f"images, batches of {BATCH}": lambda: encoder.embed_pixels(pixels),
    }
    timed = interleave({what: timing(call) for what, call in calls.items()}, rounds + 1)
    rates = {what: [count_of(what) / seconds for seconds in found[1:]] for what, found in timed.items()}
    for what, values in rates.items():
        yield measured(f"{name}: {what}", values, statistics.median, informative("1/s"))
    texts, images = rates[f"texts, batches of {BATCH}"], rates[f"images, batches of {BATCH}"]
    of_texts = [rate / images_per_s for rate in texts]
    of_both = [1.0 / (1.0 / text + 1.0 / image) / images_per_s for text, image in zip(texts, images, strict=True)]
    yield measured(f"{name}: devices that a core embeds texts for", of_texts, statistics.median, informative())
    yield measured(f"{name}: devices that a core embeds both for", of_both, statistics.median, informative())


def count_of(what: str) -> int:
    return BATCH if "batches" in what else 1


def timing(call: Callable[[], Tensor]) -> Callable[[int], float]:
    """Return a function of the round's number that times a call. Raises ValueError if it gives no unit vectors."""

    def seconds(number: int) -> float:
        found: list[Tensor] = []
        took = seconds_of(lambda: found.append(call()))
        if not math.isclose(float(found[0].norm(dim=-1).mean()), 1.0, abs_tol=1e-3):
            raise ValueError("the encoder gives no unit vectors")
        return took

    return seconds


if __name__ == "__main__":
    raise SystemExit(main())
