"""Compare embeddings of texts and images, single and in batches, with transformers' own CLIPModel: within 1e-5."""

import functools
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from pentimento.diffusion.preprocessing import ImagePreprocessing, read_preprocessing, to_pixels
from pentimento.images.decoding import decode
from services.embedder.model import EmbeddingModel, open_model
from tests.support.encoders import PREPROCESSING, SIDE_PX, write_encoder
from tests.support.images import png_of
from tests.support.run_directories import directory_for_the_run

TOLERANCE = 1e-5
ZOO = Path(__file__).parents[3] / "zoo" / "weights" / "tiny-clip"
TEXTS = (
    "a large red circle above a small blue square",
    "x",
    "",
    "  two   spaces\tand a tab ",
    "ΑΒΓ naïve café 東京 🎨",
    "it's 3 o'clock, don't you'll 12345!?",
    "a striped green triangle " * 30,
    "the word <|endoftext|> inside",
)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gelu": {"hidden_act": "gelu"},
    "legacy end token": {"end_token": 2},
    "one head, other epsilon": {"num_attention_heads": 1, "layer_norm_eps": 1e-4},
    "sharded": {"shards": True},
}


@functools.cache
def directory(variant: str) -> Path:
    if variant == "zoo":
        return ZOO
    return write_encoder(directory_for_the_run("pmt-encoder-"), **VARIANTS[variant])


@functools.cache
def ours(variant: str) -> EmbeddingModel:
    return open_model(directory(variant))


@functools.cache
def their_tokenizer(variant: str) -> CLIPTokenizer:
    return CLIPTokenizer.from_pretrained(directory(variant))


@functools.cache
def theirs(variant: str) -> CLIPModel:
    return CLIPModel.from_pretrained(directory(variant), dtype=torch.float32).eval()


def unit(features: Any) -> torch.Tensor:
    features = getattr(features, "pooler_output", features)
    return torch.nn.functional.normalize(features, dim=-1)


def their_text(variant: str, text: str) -> torch.Tensor:
    words = CLIPTokenizer.from_pretrained(directory(variant))
    length = theirs(variant).config.text_config.max_position_embeddings
    tokens = words(text, truncation=True, max_length=length, return_tensors="pt")
    with torch.inference_mode():
        return unit(theirs(variant).get_text_features(**tokens))[0]


def their_image(variant: str, image: Image.Image) -> torch.Tensor:
    processor = CLIPImageProcessorPil.from_pretrained(directory(variant))
    with torch.inference_mode():
        return unit(theirs(variant).get_image_features(**processor(image, return_tensors="pt")))[0]


def embedded(variant: str, kind: str, values: Any) -> list[torch.Tensor]:
    model = ours(variant)
    with torch.inference_mode():
        vectors = model.embed_texts(values) if kind == "text" else model.embed_images(values)
    return [torch.frombuffer(bytearray(vector), dtype=torch.float32) for vector in vectors]


def random_images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    sizes = ((24, 24), (64, 40), (17, 90), (8, 8), (120, 119))
    return [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]


def as_pixels(image: Image.Image, steps: ImagePreprocessing) -> np.ndarray:
    return decode(png_of(image), "images[0]", lambda image: to_pixels(image, steps))


@pytest.mark.parametrize("variant", [*VARIANTS, "zoo"])
def test_texts_alone_and_in_one_batch(variant):
    expected = [their_text(variant, text) for text in TEXTS]

    alone = [embedded(variant, "text", [text])[0] for text in TEXTS]
    batched = embedded(variant, "text", TEXTS)

    for got in (alone, batched):
        assert torch.stack(got).sub(torch.stack(expected)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("variant", [*VARIANTS, "zoo"])
def test_images_alone_and_in_one_batch(variant):
    images = random_images()
    expected = [their_image(variant, image) for image in images]
    pixels = [as_pixels(image, ours(variant).image_side().preprocessing) for image in images]

    alone = [embedded(variant, "image", [one])[0] for one in pixels]
    batched = embedded(variant, "image", pixels)

    for got in (alone, batched):
        assert torch.stack(got).sub(torch.stack(expected)).abs().max() <= TOLERANCE


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_is_cut_into_the_same_tokens(text):
    theirs_cut = their_tokenizer("plain")(text, truncation=True, max_length=24)["input_ids"]

    assert ours("plain").tokenizer.encode(text) == theirs_cut


def test_a_directory_without_tokenizer_json_gives_the_same_tokens(tmp_path):
    write_encoder(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer.json.gone")
    words = CLIPTokenizer.from_pretrained(directory("plain"))
    (tmp_path / "vocab.json").write_text(json.dumps(words.get_vocab()))
    (tmp_path / "merges.txt").write_text(_merges(words))

    converted = open_model(tmp_path).tokenizer

    assert [converted.encode(text) for text in TEXTS] == [ours("plain").tokenizer.encode(text) for text in TEXTS]


def _merges(words: CLIPTokenizer) -> str:
    merges = json.loads(words.backend_tokenizer.to_str())["model"]["merges"]
    return "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]) + "\n"


MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"resample": 2},
    {"do_center_crop": False, "size": {"height": SIDE_PX, "width": SIDE_PX}},
    {"size": {"shortest_edge": 10}},
    {"size": SIDE_PX, "crop_size": SIDE_PX},
    {"do_resize": False},
    {"do_normalize": False},
    {"do_rescale": False},
)


@given(
    st.integers(1, 90), st.integers(1, 90), st.sampled_from(MODES), st.sampled_from(range(len(CHANGES))), st.integers(0)
)
@settings(max_examples=150, deadline=None)
def test_any_image_gives_the_pixels_of_clip_image_processor(width, height, mode, change, seed):
    if max(width, height) > 20 * min(width, height):
        width = height
    random = np.random.default_rng(seed % 2**32)
    image = Image.fromarray(random.integers(0, 256, (height, width, 4), np.uint8), "RGBA")
    image = image.convert("L" if mode == "I;16" else mode)
    config = {**PREPROCESSING, **CHANGES[change]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "preprocessor_config.json"
        path.write_text(json.dumps(config))
        steps = read_preprocessing(path, SIDE_PX)
    expected = CLIPImageProcessorPil(**config)(Image.open(io.BytesIO(png_of(image))), return_tensors="np")
    if mode == "I;16":
        # The processor reads any value above 255 as white, so it gets the same grey in eight bits.
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)

    pixels = as_pixels(image, steps)

    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, expected["pixel_values"][0], rtol=0, atol=1e-5)
