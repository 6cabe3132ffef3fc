"""Test each family's conditioning, and their common rules: rows are independent, adapters stay in their rows."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

from lab.fixtures.checkpoints import (
    SIDE_PX,
    T5_TOKENS,
    TOKENS,
    add_inversion,
    write_checkpoint,
    write_flow_checkpoint,
    write_xl_checkpoint,
)
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart
from pentimento.diffusion.families import (
    Conditioning,
    ControlResiduals,
    DenoiserInput,
    DiffusionModel,
    LowRankUpdate,
    PerSampleAdapters,
)
from pentimento.diffusion.schedulers import DIFFUSION_SCHEDULERS, DiffusionConfig
from pentimento.domain.generation import NoiseForm, Scheduler
from tests.support.text_files import edit_json
from tests.unit.diffusion.specs import SPEC, denoise, load, part_of, rows_of, spec_with

PROMPT = "a red circle"
WITH_LANGUAGE_MODELS = (
    "klein_checkpoint",
    "flux_2_checkpoint",
    "z_image_checkpoint",
    "sana_checkpoint",
    "qwen_image_checkpoint",
)


def conditioning_of(model: DiffusionModel, prompt: str, *, negative: bool = False) -> Conditioning:
    with torch.inference_mode():
        return model.conditioning(model.encode_prompt(prompt, negative=negative), SIDE_PX, SIDE_PX)


def two_rows(model: DiffusionModel) -> DenoiserInput:
    return rows_of(model, (PROMPT, "a blue square"), torch.tensor([900.0, 100.0]))


@pytest.mark.parametrize("written", [write_checkpoint, write_xl_checkpoint, write_flow_checkpoint])
def test_weights_are_the_same_kind_of_tensors_whichever_mode_they_are_loaded_in(
    written: Callable[[Path], Path], tmp_path: Path
) -> None:
    with torch.inference_mode():
        loaded = load(written(tmp_path / "model"))

    for network in (loaded.denoiser, loaded.picture_decoder, *loaded.adaptable.values()):
        assert not any(weight.is_inference() for weight in network.parameters())


@pytest.mark.parametrize("written", [write_checkpoint, write_xl_checkpoint])
def test_saved_inversion_conditions_as_diffusers_has_it(written: Callable[[Path], Path], tmp_path: Path) -> None:
    directory = add_inversion(written(tmp_path / "model"), "<cat>", vector_count=3)
    pipeline = DiffusionPipeline.from_pretrained(directory, safety_checker=None, local_files_only=True)

    found = conditioning_of(load(directory), "a <cat>").states

    with torch.inference_mode():
        asked = {"device": torch.device("cpu"), "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
        expected = pipeline.encode_prompt("a <cat>", **asked)[0]
    assert torch.equal(found, expected)


def test_rows_of_different_images_do_not_see_each_other(any_model: DiffusionModel) -> None:
    inputs = two_rows(any_model)
    with torch.inference_mode():
        together = any_model.predict(inputs)
        alone = torch.cat([any_model.predict(part_of(inputs, slice(index, index + 1))) for index in (0, 1)])

    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_an_adapter_changes_its_own_rows_and_leaves_the_weights_alone(any_model: DiffusionModel) -> None:
    inputs = two_rows(any_model)
    name, layer = next(
        (name, module)
        for name, module in any_model.denoiser.named_modules()
        if isinstance(module, torch.nn.Linear) and name.endswith("to_q")
    )
    down, up = torch.ones(2, 3, layer.in_features), torch.ones(2, layer.out_features, 3)
    up[1] = 0.0
    adapters = PerSampleAdapters({name: LowRankUpdate(down, up)})
    with torch.inference_mode():
        before = any_model.predict(inputs)
        adapted = any_model.predict(replace(inputs, adapters=adapters))
        after = any_model.predict(inputs)

    assert not torch.equal(adapted[0], before[0])
    torch.testing.assert_close(adapted[1], before[1], rtol=0, atol=1e-6)
    assert torch.equal(after, before)


def test_predict_refuses_adapter_of_another_model(model: DiffusionModel) -> None:
    update = LowRankUpdate(torch.ones(2, 1, 1), torch.ones(2, 1, 1))

    with pytest.raises(KeyError, match="no_such_layer"):
        model.predict(replace(two_rows(model), adapters=PerSampleAdapters({"no_such_layer": update})))


@pytest.mark.parametrize(
    ("write", "sampled"), [(write_checkpoint, (False, 1)), (write_xl_checkpoint, (True, 0))], ids=["sd", "sdxl"]
)
def test_scheduler_config_of_sd_is_fixed_and_of_sdxl_stored(
    write: Callable[..., Path], sampled: tuple[bool, int], tmp_path: Path
) -> None:
    config = load(write(tmp_path / "model", clip_sample=True, steps_offset=0)).scheduler_config(Scheduler.DDIM)

    assert isinstance(config, DiffusionConfig)
    assert (config.clip_sample, config.steps_offset) == sampled


def test_sdxl_conditioning_absent_prompt_is_zeros_unless_checkpoint_says(
    xl_model: DiffusionModel, tmp_path: Path
) -> None:
    absent, empty = conditioning_of(xl_model, "", negative=True), conditioning_of(xl_model, "")
    encodes = load(write_xl_checkpoint(tmp_path / "xl", zeros=False))

    assert absent.pooled is not None and empty.pooled is not None
    assert not absent.states.any() and not absent.pooled.any()
    assert empty.states.any() and empty.pooled.any()
    assert torch.equal(conditioning_of(encodes, "", negative=True).states, conditioning_of(encodes, "").states)
    sizes = xl_model.conditioning(xl_model.encode_prompt(PROMPT), 48, 32).sizes
    assert sizes is not None and sizes.tolist() == [[32, 48, 0, 0, 32, 48]]


def test_flow_conditioning_without_t5_has_zeros_of_index_count(flow_model: DiffusionModel, tmp_path: Path) -> None:
    states = conditioning_of(flow_model, PROMPT).states
    without_count = load(write_flow_checkpoint(tmp_path / "flow"))

    assert states.shape[1] == TOKENS + 3
    assert not states[:, TOKENS:].any()
    assert conditioning_of(without_count, "").states.shape[1] == TOKENS + 256


def test_flow_conditioning_with_t5_reads_prompt_to_its_end(tmp_path: Path) -> None:
    short, long = (
        load(write_flow_checkpoint(tmp_path / str(count), t5=True, max_sequence_length=count))
        for count in (T5_TOKENS, 64)
    )
    states = conditioning_of(short, PROMPT).states

    assert states.shape[1] == TOKENS + T5_TOKENS
    assert not torch.equal(states[:, TOKENS:], conditioning_of(short, "a blue").states[:, TOKENS:])
    with torch.inference_mode():
        assert not long.encode_prompt("a" * (TOKENS + 1)).truncated
        assert long.encode_prompt("a" * 70).truncated


@pytest.mark.parametrize("loaded", ["model", "flow_model"])
def test_predict_with_residuals_of_zeros_changes_no_bit(loaded: str, request: pytest.FixtureRequest) -> None:
    found: DiffusionModel = request.getfixturevalue(loaded)
    inputs = two_rows(found)

    def residuals(value: float) -> ControlResiduals:
        if loaded == "flow_model":
            return ControlResiduals(block_residuals=(torch.full((2, 16, 16), value),))
        down = [(2, 16, 8, 8), (2, 16, 8, 8), (2, 16, 4, 4), (2, 32, 4, 4)]
        return ControlResiduals(tuple(torch.full(shape, value) for shape in down), torch.full((2, 32, 4, 4), value))

    with torch.inference_mode():
        plain, with_zeros, with_ones = (
            found.predict(replace(inputs, residuals=one)) for one in (None, residuals(0.0), residuals(1.0))
        )

    assert torch.equal(plain, with_zeros)
    assert not torch.equal(plain, with_ones)


def test_info_describes_each_family(
    model: DiffusionModel, xl_model: DiffusionModel, flow_model: DiffusionModel
) -> None:
    infos = [found.info for found in (model, xl_model, flow_model)]

    assert [info.family for info in infos] == ["stable_diffusion", "stable_diffusion_xl", "stable_diffusion_3"]
    assert [info.prediction_type for info in infos] == ["v_prediction", "epsilon", "flow"]
    assert [info.noise_form for info in infos] == [NoiseForm.VARIANCE_PRESERVING] * 2 + [NoiseForm.FLOW_MATCHING]
    assert [info.longest_side_px for info in infos] == [None, None, 64]
    assert infos[1].schedulers == DIFFUSION_SCHEDULERS
    assert infos[2].schedulers == (Scheduler.FLOW_MATCH_EULER,)


@pytest.mark.parametrize(
    "family", ["checkpoint", "xl_checkpoint", "flow_checkpoint", "flux_checkpoint", *WITH_LANGUAGE_MODELS]
)
def test_every_family_generates_in_half_precision(family: str, request: pytest.FixtureRequest) -> None:
    model = load(request.getfixturevalue(family), torch.bfloat16)
    pixels = torch.rand(1, 3, SIDE_PX, SIDE_PX) * 2 - 1
    for scheduler in model.info.schedulers:
        spec = spec_with(scheduler=scheduler, num_inference_steps=3, negative_prompt="")

        latent = denoise(model, DenoisingRequest(spec, ImageStart(pixels, 1)))

        assert latent.dtype is torch.bfloat16
        with torch.inference_mode():
            assert model.decode_latent(latent).isfinite().all()


def test_sdxls_autoencoder_stays_in_full_precision_where_it_asks_for_it(xl_checkpoint: Path) -> None:
    model = load(xl_checkpoint, torch.bfloat16)
    latent = torch.randn(model.latent_shape(SIDE_PX, SIDE_PX), dtype=torch.bfloat16)

    with torch.inference_mode():
        assert model.decode_latent(latent).dtype is torch.float32


def test_images_of_one_size_and_number_of_rows_may_share_a_batch(
    model: DiffusionModel, flux_model: DiffusionModel
) -> None:
    key, distilled = model.info.batch_key, flux_model.info.batch_key
    assert key(SPEC) == key(spec_with(prompt="other", seed=1, guidance_scale=9.0, num_inference_steps=3))
    assert key(SPEC) != key(spec_with(width_px=64))
    assert key(SPEC) != key(spec_with(guidance_scale=1.0))
    assert distilled(SPEC) == distilled(spec_with(guidance_scale=1.0)) != key(SPEC)


@pytest.mark.parametrize(
    ("version", "side_px"), [("0.6.0.dev0", 256), ("0.9.0", SIDE_PX), ("0.42.1", SIDE_PX), ("of old", SIDE_PX)]
)
def test_sizes_of_releases_before_nine_equal_diffusers(
    checkpoint: Path, tmp_path: Path, version: str, side_px: int
) -> None:
    directory = shutil.copytree(checkpoint, tmp_path / "old")
    edit_json(directory / "unet/config.json", _diffusers_version=version)

    info = load(directory).info

    assert (info.default_width_px, info.default_height_px) == (side_px, side_px)
