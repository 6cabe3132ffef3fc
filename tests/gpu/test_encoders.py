"""Test that encoders and discriminators give the CPU's results on a GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pentimento.diffusion.discriminators import open_discriminator
from services.embedder.model import open_model
from tests.support.encoders import SIDE_PX, write_encoder, write_sentence_encoder

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
SHIPPED = Path(__file__).parents[2] / "zoo" / "weights"


@torch.inference_mode()
def test_encoders_give_a_cpus_vectors(tmp_path: Path) -> None:
    for directory in (write_encoder(tmp_path / "dual"), write_sentence_encoder(tmp_path / "sentence")):
        on_cpu, on_gpu = open_model(directory), open_model(directory, GPU)
        texts = ["a red circle", "x"]
        found = [np.frombuffer(b"".join(model.embed_texts(texts)), "<f4") for model in (on_cpu, on_gpu)]
        assert np.abs(found[0] - found[1]).max() <= 1e-5
        if on_cpu.images is not None and on_gpu.images is not None:
            pixels = [np.random.default_rng(1).normal(size=(3, SIDE_PX, SIDE_PX)).astype(np.float32)]
            seen = [np.frombuffer(model.embed_images(pixels)[0], "<f4") for model in (on_cpu, on_gpu)]
            assert np.abs(seen[0] - seen[1]).max() <= 1e-5


def test_discriminators_give_a_cpus_confidences() -> None:
    directory = SHIPPED / "tiny-discriminator"
    on_cpu, on_gpu = open_discriminator(directory), open_discriminator(directory, device=GPU)
    size = on_cpu.image_size_px
    pixels = [np.random.default_rng(seed).uniform(size=(3, size, size)).astype(np.float32) for seed in range(3)]
    assert np.abs(np.subtract(on_cpu.confidences(pixels), on_gpu.confidences(pixels))).max() <= 1e-4
