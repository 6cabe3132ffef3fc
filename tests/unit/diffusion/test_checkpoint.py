"""Checkpoints that are served: the files in their directories, and the coverage of their digests."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.fixtures.checkpoints import write_checkpoint
from tests.support.text_files import edit_json
from tests.unit.diffusion.specs import load
from tests.unit.diffusion.test_refused_checkpoints import INDEX, SCHEDULER, UNET, canary_of, edited


def add_pickles(model: Path) -> None:
    for folder in ("unet", "vae", "text_encoder"):
        for name in ("pytorch_model.bin", "diffusion_pytorch_model.bin"):
            (model / folder / name).write_bytes(pickle.dumps(canary_of(model)))


def add_code(model: Path) -> None:
    code = f"open({str(model.parent / 'canary')!r}, 'w')"
    (model / "pipeline.py").write_text(code)
    (model / "unet" / "unet_2d_condition.py").write_text(code)
    edit_json(model / "unet/config.json", auto_map={"AutoModel": "unet_2d_condition.UNet2DConditionModel"})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(add_pickles, id="pickles beside the weights"),
        pytest.param(add_code, id="code beside the weights"),
        pytest.param(
            edited(INDEX, safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"]), id="a safety checker"
        ),
        # Without torchvision transformers 5 writes the last name.
        *(
            pytest.param(edited(INDEX, feature_extractor=["transformers", name]), id=name)
            for name in ("CLIPImageProcessor", "CLIPFeatureExtractor", "CLIPImageProcessorPil")
        ),
        pytest.param(edited(INDEX, tokenizer=["transformers", "CLIPTokenizerFast"]), id="a fast tokenizer"),
        pytest.param(
            lambda model: (model / UNET).rename(model / "unet/diffusion_pytorch_model.fp16.safetensors"),
            id="a variant alone",
        ),
    ],
)
def test_load_model_takes_checkpoint(copy: Path, change: Callable[[Path], object]) -> None:
    change(copy)

    load(copy)

    assert not (copy.parent / "canary").exists()


def test_model_digests_cover_weights_and_configuration_alone(copy: Path) -> None:
    before = load(copy).info
    (copy / "README.md").write_text("a card")
    (copy / "unet" / "pickle.bin").write_bytes(b"x")
    same = load(copy).info
    edit_json(copy / SCHEDULER, beta_end=0.013)
    after = load(copy).info

    assert same == before
    assert after.model_digest != before.model_digest
    assert after.scheduler_digest != before.scheduler_digest
    assert after.vae_digest == before.vae_digest


def test_load_model_computes_half_precision_weights_in_full(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path / "half", half=True))

    with torch.inference_mode():
        assert model.encode_prompt("a cat").conditioning.states.dtype == torch.float32


@pytest.mark.parametrize("variant", [None, "fp16"])
def test_load_model_finds_shards(copy: Path, variant: str | None) -> None:
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel.from_pretrained(copy / "unet")
    (copy / UNET).unlink()
    unet.save_pretrained(copy / "unet", max_shard_size="100KB", variant=variant)
    assert len(list((copy / "unet").glob("*.safetensors"))) > 1

    load(copy)


@pytest.mark.parametrize(("dtype", "bias"), [(torch.float32, 1.0), (torch.float16, 2.0)])
def test_load_model_prefers_the_variant_of_its_precision(copy: Path, dtype: torch.dtype, bias: float) -> None:
    tensors = load_file(copy / UNET)
    for name, value in ((UNET, 1.0), ("unet/diffusion_pytorch_model.fp16.safetensors", 2.0)):
        save_file({**tensors, "conv_out.bias": torch.full_like(tensors["conv_out.bias"], value)}, copy / name)

    assert load(copy, dtype).denoiser.conv_out.bias[0] == bias
