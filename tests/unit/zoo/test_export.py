"""What the zoo exports is loaded by stock diffusers and transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

from zoo.export import export_all
from zoo.registry import WEIGHTS, directory_digest, read_registry
from zoo.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    build_tokenizer(folder / "work" / "tokenizer", count=200, merges=50)
    export_all(folder / "work", folder / "weights", untrained=True)
    return folder / "weights"


@pytest.mark.parametrize("name", ["tiny-heavy", "tiny-light"])
def test_a_stock_pipeline_loads_a_denoiser_and_paints(name: str, weights: Path) -> None:
    pipeline = StableDiffusionPipeline.from_pretrained(weights / name)
    pipeline.set_progress_bar_config(disable=True)

    images = pipeline("a red circle", num_inference_steps=2, output_type="np").images

    assert pipeline.unet.dtype == pipeline.text_encoder.dtype == torch.float32
    assert images.shape == (1, 32, 32, 3)
    assert np.isfinite(images).all()


def test_a_stock_clip_model_finds_every_weight_in_the_shards(weights: Path) -> None:
    _, loading = CLIPModel.from_pretrained(weights / "tiny-clip", output_loading_info=True)

    assert not any(loading.values())


def test_a_stock_clip_model_embeds_captions_and_pictures_alike(weights: Path) -> None:
    model = CLIPModel.from_pretrained(weights / "tiny-clip")
    tokens = CLIPTokenizer.from_pretrained(weights / "tiny-clip")("a red circle", return_tensors="pt")
    pixels = CLIPImageProcessor.from_pretrained(weights / "tiny-clip")(
        np.zeros((32, 32, 3), np.uint8), return_tensors="pt"
    )

    found = model(**tokens, **pixels)

    assert found.text_embeds.shape == found.image_embeds.shape == (1, 128)


def test_what_the_models_share_is_byte_identical(weights: Path) -> None:
    shared = [
        weights / "tiny-heavy" / "text_encoder" / "model.safetensors",
        weights / "tiny-light" / "text_encoder" / "model.safetensors",
        weights / "tiny-clip" / "model-00001-of-00002.safetensors",
    ]
    autoencoders = [
        weights / name / "vae" / "diffusion_pytorch_model.safetensors" for name in ("tiny-heavy", "tiny-light")
    ]

    assert len({path.read_bytes() for path in shared}) == 1
    assert len({path.read_bytes() for path in autoencoders}) == 1


def test_a_digest_changes_with_a_file_and_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    first = directory_digest(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = directory_digest(tmp_path)
    (tmp_path / "b").write_bytes(b"2")

    assert len({first, renamed, directory_digest(tmp_path)}) == 3


def test_the_registry_in_the_tree_tells_the_truth_about_the_weights() -> None:
    for name, entry in read_registry(WEIGHTS).items():
        assert directory_digest(WEIGHTS / str(entry["path"])) == entry["digest"], name
