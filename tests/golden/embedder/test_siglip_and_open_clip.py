"""Compare embeddings of texts and images with transformers' SiglipModel, and with a second implementation of
open_clip's model."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode, v2
from transformers import PreTrainedTokenizerFast, SiglipModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from pentimento.diffusion.checkpoint import BadCheckpoint
from services.embedder.model import EmbeddingModel, open_model
from tests.support.encoders import OPEN_CLIP_CONFIG, SIDE_PX, TOKENS, write_open_clip_encoder, write_siglip_encoder
from tests.support.images import png_of
from tests.support.run_directories import directory_for_the_run

TOLERANCE = 1e-5
TEXTS = ("a red circle on a blue square", "x", "", "A Red, Blue 1 2", "the red circle above " * 30)
SIZES = ((24, 24), (64, 40), (17, 90), (8, 8), (120, 119))


@functools.cache
def siglip() -> Path:
    return write_siglip_encoder(directory_for_the_run("pmt-siglip-"))


@functools.cache
def open_clip(quick: bool) -> Path:
    return write_open_clip_encoder(directory_for_the_run("pmt-open-clip-"), **({"quick_gelu": True} if quick else {}))


@functools.cache
def opened(directory: Path) -> EmbeddingModel:
    return open_model(directory)


def images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]


def our_texts(directory: Path, texts: Sequence[str]) -> Tensor:
    with torch.inference_mode():
        return as_tensor(opened(directory).embed_texts(texts))


def our_images(directory: Path, given: Sequence[Image.Image]) -> Tensor:
    side = opened(directory).image_side()
    with torch.inference_mode():
        return as_tensor(side.embed([side.prepare(png_of(image), "images[0]") for image in given]))


def as_tensor(vectors: Sequence[bytes]) -> Tensor:
    return torch.stack([torch.frombuffer(bytearray(vector), dtype=torch.float32) for vector in vectors])


def unit(features: Any) -> Tensor:
    return nn.functional.normalize(getattr(features, "pooler_output", features), dim=-1)


def assert_equal_alone_and_in_batch(ours: Any, directory: Path, values: Sequence[Any], expected: Tensor) -> None:
    alone = torch.cat([ours(directory, [value]) for value in values])

    assert alone.sub(expected).abs().max() <= TOLERANCE
    assert ours(directory, values).sub(expected).abs().max() <= TOLERANCE


@torch.inference_mode()
def test_siglip_embeds_as_transformers_does() -> None:
    theirs = SiglipModel.from_pretrained(siglip(), dtype=torch.float32).eval()
    words = PreTrainedTokenizerFast(tokenizer_file=str(siglip() / "tokenizer.json"), pad_token="</s>")
    ids = words(list(TEXTS), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt").input_ids
    processor = SiglipImageProcessorPil.from_pretrained(siglip())
    pixels = processor(images(), return_tensors="pt")

    assert_equal_alone_and_in_batch(our_texts, siglip(), TEXTS, unit(theirs.get_text_features(input_ids=ids)))
    assert_equal_alone_and_in_batch(our_images, siglip(), images(), unit(theirs.get_image_features(**pixels)))


class SecondOpenClip:
    """Compute open_clip's formula by torch's own attention, from the stored tensors."""

    def __init__(self, directory: Path) -> None:
        model = json.loads((directory / "open_clip_config.json").read_text())["model_cfg"]
        self.tensors = load_file(directory / "open_clip_model.safetensors")
        self.quick = bool(model.get("quick_gelu"))

    def text(self, ids: Tensor) -> Tensor:
        states = self.tensors["token_embedding.weight"][ids] + self.tensors["positional_embedding"][: ids.shape[1]]
        mask = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)
        states = self.norm("ln_final", self.run("", states, 4, mask))
        return states[torch.arange(len(ids)), ids.argmax(dim=-1)] @ self.tensors["text_projection"]

    def image(self, pixels: Tensor) -> Tensor:
        patches = nn.functional.conv2d(pixels, self.tensors["visual.conv1.weight"], stride=8).flatten(2).mT
        first = self.tensors["visual.class_embedding"].expand(len(pixels), 1, -1)
        states = torch.cat([first, patches], dim=1) + self.tensors["visual.positional_embedding"]
        states = self.run("visual.", self.norm("visual.ln_pre", states), 4, None)
        return self.norm("visual.ln_post", states[:, 0]) @ self.tensors["visual.proj"]

    def run(self, model: str, states: Tensor, heads: int, mask: Tensor | None) -> Tensor:
        for index in range(2):
            block = f"{model}transformer.resblocks.{index}"
            attention = nn.MultiheadAttention(states.shape[-1], heads, batch_first=True)
            own = {
                k.removeprefix(f"{block}.attn."): v for k, v in self.tensors.items() if k.startswith(f"{block}.attn.")
            }
            attention.load_state_dict(own)
            normed = self.norm(f"{block}.ln_1", states)
            states = states + attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
            inner = self.linear(f"{block}.mlp.c_fc", self.norm(f"{block}.ln_2", states))
            inner = inner * torch.sigmoid(1.702 * inner) if self.quick else nn.functional.gelu(inner)
            states = states + self.linear(f"{block}.mlp.c_proj", inner)
        return states

    def norm(self, name: str, states: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return nn.functional.layer_norm(states, weight.shape, weight, bias, 1e-5)

    def linear(self, name: str, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])


@pytest.mark.parametrize("quick", [False, True])
@torch.inference_mode()
def test_open_clip_embeds_as_second_implementation_does(quick: bool) -> None:
    directory = open_clip(quick)
    second, words = SecondOpenClip(directory), opened(directory).tokenizer
    texts = torch.cat([second.text(torch.tensor([words.encode(text)])) for text in TEXTS])
    steps = OPEN_CLIP_CONFIG["preprocess_cfg"]
    chain = v2.Compose(
        [
            v2.Resize(SIDE_PX, InterpolationMode.BICUBIC),
            v2.CenterCrop(SIDE_PX),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(steps["mean"], steps["std"]),
        ]
    )
    seen = unit(second.image(torch.stack([chain(image) for image in images()])))

    assert_equal_alone_and_in_batch(our_texts, directory, TEXTS, unit(texts))
    assert_equal_alone_and_in_batch(our_images, directory, images(), seen)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("text_cfg", {"hf_model_name": "roberta"}, "text_cfg may have .* got 'hf_model_name'"),
        ("vision_cfg", {"timm_model_name": "vit"}, "vision_cfg may have .* got 'timm_model_name'"),
        ("vision_cfg", {"patch_size": 0}, "patch_size must be between"),
        ("text_cfg", {"heads": 5}, "width must be a multiple of the number of heads, 5, got 32"),
        ("text_cfg", {"mlp_ratio": 0}, "mlp_ratio must be above 0"),
        (None, {"custom_text": True}, "model_cfg may have .* got 'custom_text'"),
        (None, {"text_cfg": 3}, "text_cfg must be an object"),
        ("text_cfg", {"layers": 3}, r"tensor transformer\.resblocks\.2\..* is missing"),
    ],
)
def test_open_clip_directory_that_is_not_built_names_key(
    tmp_path: Path, section: str | None, values: dict[str, Any], message: str
) -> None:
    write_open_clip_encoder(tmp_path)
    path = tmp_path / "open_clip_config.json"
    document = json.loads(path.read_text())
    model = document["model_cfg"]
    (model if section is None else model[section]).update(values)
    path.write_text(json.dumps(document))

    with pytest.raises(BadCheckpoint, match=message):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "section", "values", "message"),
    [
        ("config.json", None, {"model_type": "siglip2"}, "model_type must be one of .*'siglip'.* got 'siglip2'"),
        ("config.json", "vision_config", {"vision_use_head": False}, "vision_use_head must be true"),
        ("config.json", "text_config", {"projection_size": 7}, "projection_size must be the vision tower's .* got 7"),
        ("config.json", "text_config", {"vocab_size": 5}, r"token_embedding\.weight must have shape"),
        ("tokenizer_config.json", None, {"pad_token": "<none>"}, "pad_token must be a token of tokenizer.json"),
    ],
)
def test_siglip_directory_that_does_not_fit_names_key(
    tmp_path: Path, name: str, section: str | None, values: dict[str, Any], message: str
) -> None:
    write_siglip_encoder(tmp_path)
    document = json.loads((tmp_path / name).read_text())
    (document if section is None else document[section]).update(values)
    (tmp_path / name).write_text(json.dumps(document))

    with pytest.raises(BadCheckpoint, match=message):
        open_model(tmp_path)
