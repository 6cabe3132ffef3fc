"""Compare images with LoRAs with diffusers' `load_lora_weights`, `set_adapters` and `fuse_lora`: linear layers,
convolutions, text encoders, alphas other than the rank, one and several, in every family."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.flow_checkpoints import (
    write_flux_checkpoint,
    write_klein_checkpoint,
    write_qwen_image_checkpoint,
    write_z_image_checkpoint,
)
from lab.fixtures.lora_files import EVERYWHERE, random_factors, write_diffusers_lora, write_original_lora
from lab.fixtures.lora_reference import (
    WeightedFile,
    distance,
    latents_of_diffusers,
    latents_of_engine,
    read_set,
    spec_of_case,
)
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.loras import layers_of
from pentimento.domain.generation import Scheduler

# PEFT warns about several LoRAs.
pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config`")

PATCHED, BESIDE = 1e-5, 1e-4
ZOO = Path(__file__).parents[3] / "zoo" / "weights"

FAMILIES: dict[str, tuple[Callable[[Path], Path], Scheduler]] = {
    "SD": (partial(write_checkpoint, prediction_type="v_prediction", timestep_spacing="trailing"), Scheduler.DDIM),
    "XL": (write_xl_checkpoint, Scheduler.EULER),
    "flow": (write_flow_checkpoint, Scheduler.FLOW_MATCH_EULER),
    "FLUX": (write_flux_checkpoint, Scheduler.FLOW_MATCH_EULER),
    "FLUX.2": (partial(write_klein_checkpoint, is_distilled=False), Scheduler.FLOW_MATCH_EULER),
    "Z-Image": (write_z_image_checkpoint, Scheduler.FLOW_MATCH_EULER),
    "Qwen-Image": (write_qwen_image_checkpoint, Scheduler.FLOW_MATCH_EULER),
    "SANA": (write_sana_checkpoint, Scheduler.FLOW_DPM_SOLVER_PP_2M),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_images_with_loras_equal_diffusers(family: str, count: int, tmp_path: Path) -> None:
    write, scheduler = FAMILIES[family]
    checkpoint = write(tmp_path / "model")
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    files = _files(model, tmp_path)[:count]

    _assert_as_diffusers(checkpoint, model, files, Case("a red circle", "blurred", scheduler, seed=3, steps=5))


def test_kohya_names_of_flux_are_read_as_by_diffusers(tmp_path: Path) -> None:
    """Leave out the layers that diffusers' converter splits at the width of the real network, and the layers outside
    the blocks: the converter names the latter without a component, and its loader drops them."""
    checkpoint = write_flux_checkpoint(tmp_path / "model")
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    base = layers_of(model.info.family, model.adaptable)
    path = tmp_path / "lora" / "it.safetensors"
    file, _ = write_original_lora(path, base, "lora_unet_", without=("linear1", "final_layer", "_in"), size=0.2)

    case = Case("a red circle", "", Scheduler.FLOW_MATCH_EULER, seed=3, steps=4)
    _assert_as_diffusers(checkpoint, model, [(file, 0.7)], case)


def _files(model: DiffusionModel, directory: Path) -> list[WeightedFile]:
    """Write a LoRA of every component with an alpha above its rank, a LoRA of the denoiser with an alpha below it, and
    a layer with a separate alpha."""
    base = layers_of(model.info.family, model.adaptable)
    ends = (*EVERYWHERE, "add_k_proj", "proj", "proj_mlp", "proj_out", "x_embedder")
    whole = random_factors(base, rank=3, seed=1, ends=ends, size=0.1)
    ends = ("to_k", "to_v", "conv2")
    denoiser = random_factors(base, rank=4, seed=2, ends=ends, components=[base.denoiser], size=0.1)
    own = {next(iter(denoiser[base.denoiser])): 3.0}
    return [
        (write_diffusers_lora(directory / "first", whole, alpha=5.0), 0.8),
        (write_diffusers_lora(directory / "second", denoiser, alpha=2.0, alphas=own), -0.5),
    ]


def _assert_as_diffusers(checkpoint: Path, model: DiffusionModel, files: Sequence[WeightedFile], case: Case) -> None:
    spec, adapters = spec_of_case(model, case), read_set(model, files)
    layers = latents_of_diffusers(checkpoint, case, files, fused=False)
    fused = latents_of_diffusers(checkpoint, case, files, fused=True)
    (plain,) = latents_of_engine(model, [spec], [()])

    (patched,) = latents_of_engine(model, [spec], [adapters])
    beside, other = latents_of_engine(model, [spec, spec], [adapters, ()])

    assert distance(patched, plain) > 0.01
    assert distance(patched, fused) <= PATCHED
    assert distance(beside, layers) <= BESIDE
    assert distance(other, plain) <= BESIDE


@pytest.mark.skipif(not (ZOO / "tiny-lora-neon").is_dir(), reason="the zoo's weights are not here")
@pytest.mark.parametrize("styles", [("neon",), ("blueprint", "mosaic")], ids=lambda styles: "+".join(styles))
def test_images_with_zoo_loras_equal_diffusers(styles: tuple[str, ...]) -> None:
    files = [(ZOO / f"tiny-lora-{style}" / "pytorch_lora_weights.safetensors", 1 / len(styles)) for style in styles]
    model = load_model(ZOO / "tiny-heavy", torch.device("cpu"), torch.float32)

    _assert_as_diffusers(ZOO / "tiny-heavy", model, files, Case("a red star at night", "", Scheduler.DDIM, steps=8))
