"""Keep every tensor of an encoder on its device. The device "meta" stands for a GPU: an operation that mixes it with
the CPU fails, or its result is on the CPU."""

from pathlib import Path

import torch

from services.embedder.dual_encoder import DualEncoder, open_encoder
from services.embedder.sentence_encoder import SentenceEncoder, open_sentence_encoder
from tests.support.encoders import write_encoder, write_sentence_encoder

GPU = torch.device("meta")


def test_dual_encoder_computes_on_its_device(tmp_path: Path) -> None:
    checkpoint = open_encoder(write_encoder(tmp_path))
    side = checkpoint.config.image_size

    encoder = DualEncoder(checkpoint, GPU)
    vectors = [encoder.embed_tokens([[0, 1], [0, 3, 1]]), encoder.embed_pixels(torch.zeros(2, 3, side, side))]

    assert [vector.device for vector in vectors] == [GPU, GPU]


def test_sentence_encoder_computes_on_its_device(tmp_path: Path) -> None:
    checkpoint = open_sentence_encoder(write_sentence_encoder(tmp_path))

    vectors = SentenceEncoder(checkpoint, GPU).embed_tokens([[0, 1], [0, 3, 1]])

    assert vectors.device == GPU
