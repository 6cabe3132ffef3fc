"""What each family conditions on, and what all of them keep: rows are independent, adapters stay in their rows."""

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
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.families import (
    Conditioning,
    ControlResiduals,
    DenoiserInput,
    DiffusionModel,
    LowRankUpdate,
    PerSampleAdapters,
    batch_key,
    load_model,
)
from pentimento.diffusion.painting import ImageStart, PaintingRequest
from pentimento.diffusion.schedulers import DiffusionConfig
from pentimento.domain.generation import NoiseForm, Scheduler
from tests.support.text_files import edit_json
from tests.unit.diffusion.specs import SPEC, paint, spec_with

PROMPT = "a red circle"


def load(directory: Path) -> DiffusionModel:
    return load_model(directory, torch.device("cpu"), torch.float32)


def conditioning_of(model: DiffusionModel, prompt: str, *, negative: bool = False) -> Conditioning:
    with torch.inference_mode():
        return model.conditioning(model.encode_prompt(prompt, negative=negative), SIDE_PX, SIDE_PX)


def two_rows(model: DiffusionModel) -> DenoiserInput:
    shape = model.latent_shape(SIDE_PX, SIDE_PX)
    latents = torch.randn(2, *shape[1:], generator=torch.Generator().manual_seed(1))
    texts = Conditioning.concatenate([conditioning_of(model, PROMPT), conditioning_of(model, "a blue square")])
    return DenoiserInput(latents, torch.tensor([900.0, 100.0]), texts)


def row(inputs: DenoiserInput, index: int) -> DenoiserInput:
    part, texts = slice(index, index + 1), inputs.conditioning
    pooled = None if texts.pooled is None else texts.pooled[part]
    sizes = None if texts.sizes is None else texts.sizes[part]
    return DenoiserInput(inputs.latents[part], inputs.timesteps[part], Conditioning(texts.states[part], pooled, sizes))


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


def test_rows_of_different_pictures_do_not_see_each_other(any_model: DiffusionModel) -> None:
    inputs = two_rows(any_model)
    with torch.inference_mode():
        together = any_model.predict(inputs)
        alone = torch.cat([any_model.predict(row(inputs, index)) for index in (0, 1)])

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


def test_an_adapter_equals_patched_weights(model: DiffusionModel) -> None:
    inputs = two_rows(model)
    layer = model.denoiser.get_submodule("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k")
    assert isinstance(layer, torch.nn.Linear)
    down, up = torch.randn(3, layer.in_features), torch.randn(layer.out_features, 3)
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k"
    adapters = PerSampleAdapters({name: LowRankUpdate(down.expand(2, -1, -1), up.expand(2, -1, -1))})
    saved = layer.weight.clone()
    with torch.inference_mode():
        beside = model.predict(replace(inputs, adapters=adapters))
        layer.weight.copy_(saved + up @ down)
        patched = model.predict(inputs)
        layer.weight.copy_(saved)

    torch.testing.assert_close(beside, patched, rtol=0, atol=1e-4)


def test_an_adapter_of_another_model_is_refused(model: DiffusionModel) -> None:
    update = LowRankUpdate(torch.ones(2, 1, 1), torch.ones(2, 1, 1))

    with pytest.raises(KeyError, match="no_such_layer"):
        model.predict(replace(two_rows(model), adapters=PerSampleAdapters({"no_such_layer": update})))


def test_every_picture_of_stable_diffusion_is_sampled_as_one_from_text(tmp_path: Path) -> None:
    stored = write_checkpoint(tmp_path / "model", clip_sample=True, steps_offset=0)

    config = load(stored).scheduler_config(Scheduler.DDIM)

    assert isinstance(config, DiffusionConfig)
    assert (config.clip_sample, config.steps_offset) == (False, 1)


def test_sdxls_sampler_is_as_it_is_stored(tmp_path: Path) -> None:
    stored = write_xl_checkpoint(tmp_path / "model", clip_sample=True, steps_offset=0)

    config = load(stored).scheduler_config(Scheduler.DDIM)

    assert isinstance(config, DiffusionConfig)
    assert (config.clip_sample, config.steps_offset) == (True, 0)


def test_an_absent_negative_prompt_of_sdxl_is_zeros(xl_model: DiffusionModel) -> None:
    absent, empty = conditioning_of(xl_model, "", negative=True), conditioning_of(xl_model, "")

    assert absent.pooled is not None and empty.pooled is not None
    assert not absent.states.any() and not absent.pooled.any()
    assert empty.states.any() and empty.pooled.any()


def test_a_checkpoint_may_say_that_an_absent_prompt_is_encoded(tmp_path: Path) -> None:
    model = load(write_xl_checkpoint(tmp_path / "xl", zeros=False))

    assert torch.equal(conditioning_of(model, "", negative=True).states, conditioning_of(model, "").states)


def test_sdxl_sees_the_size_of_the_picture(xl_model: DiffusionModel) -> None:
    texts = xl_model.conditioning(xl_model.encode_prompt(PROMPT), 48, 32)

    assert texts.sizes is not None
    assert texts.sizes.tolist() == [[32, 48, 0, 0, 32, 48]]


def test_a_flow_without_t5_gets_as_many_zeros_as_its_index_says(flow_model: DiffusionModel) -> None:
    states = conditioning_of(flow_model, PROMPT).states

    assert states.shape[1] == TOKENS + 3
    assert not states[:, TOKENS:].any()


def test_a_flow_reads_the_prompt_with_t5_where_it_has_one(tmp_path: Path) -> None:
    model = load(write_flow_checkpoint(tmp_path / "flow", t5=True, max_sequence_length=T5_TOKENS))
    states = conditioning_of(model, PROMPT).states

    assert states.shape[1] == TOKENS + T5_TOKENS
    assert not torch.equal(states[:, TOKENS:], conditioning_of(model, "a blue").states[:, TOKENS:])


def test_a_prompt_is_truncated_only_where_no_encoder_reads_its_end(tmp_path: Path) -> None:
    model = load(write_flow_checkpoint(tmp_path / "flow", t5=True, max_sequence_length=64))
    with torch.inference_mode():
        assert not model.encode_prompt("a" * (TOKENS + 1)).truncated
        assert model.encode_prompt("a" * 70).truncated


def test_an_index_without_a_count_means_the_pipelines_own(tmp_path: Path) -> None:
    model = load(write_flow_checkpoint(tmp_path / "flow"))

    assert conditioning_of(model, "").states.shape[1] == TOKENS + 256


def test_residuals_of_a_controlnet_reach_the_blocks_of_a_transformer(flow_model: DiffusionModel) -> None:
    inputs = two_rows(flow_model)
    zeros, ones = torch.zeros(2, 16, 16), torch.ones(2, 16, 16)
    with torch.inference_mode():
        plain, with_zeros, with_ones = (
            flow_model.predict(replace(inputs, residuals=residuals))
            for residuals in (
                None,
                ControlResiduals(block_residuals=(zeros,)),
                ControlResiduals(block_residuals=(ones,)),
            )
        )

    assert torch.equal(plain, with_zeros)
    assert not torch.equal(plain, with_ones)


def test_each_family_says_what_it_is(
    model: DiffusionModel, xl_model: DiffusionModel, flow_model: DiffusionModel
) -> None:
    infos = [found.info for found in (model, xl_model, flow_model)]

    assert [info.family for info in infos] == ["stable_diffusion", "stable_diffusion_xl", "stable_diffusion_3"]
    assert [info.prediction_type for info in infos] == ["v_prediction", "epsilon", "flow"]
    assert [info.noise_form for info in infos] == [NoiseForm.VARIANCE_PRESERVING] * 2 + [NoiseForm.FLOW_MATCHING]
    assert [info.longest_side_px for info in infos] == [None, None, 64]
    assert infos[1].schedulers == (
        Scheduler.DDIM,
        Scheduler.EULER,
        Scheduler.EULER_ANCESTRAL,
        Scheduler.DPM_SOLVER_PP_2M,
    )
    assert infos[2].schedulers == (Scheduler.FLOW_MATCH_EULER,)


@pytest.mark.parametrize("family", ["checkpoint", "xl_checkpoint", "flow_checkpoint"])
def test_every_family_paints_in_half_precision(family: str, request: pytest.FixtureRequest) -> None:
    model = load_model(request.getfixturevalue(family), torch.device("cpu"), torch.bfloat16)
    pixels = torch.rand(1, 3, SIDE_PX, SIDE_PX) * 2 - 1
    for scheduler in model.info.schedulers:
        spec = spec_with(scheduler=scheduler, num_inference_steps=3, negative_prompt="")

        latent = paint(model, PaintingRequest(spec, ImageStart(pixels, 1)))

        assert latent.dtype is torch.bfloat16
        with torch.inference_mode():
            assert model.decode_latent(latent).isfinite().all()


def test_sdxls_autoencoder_stays_in_full_precision_where_it_asks_for_it(xl_checkpoint: Path) -> None:
    model = load_model(xl_checkpoint, torch.device("cpu"), torch.bfloat16)
    latent = torch.randn(model.latent_shape(SIDE_PX, SIDE_PX), dtype=torch.bfloat16)

    with torch.inference_mode():
        assert model.decode_latent(latent).dtype is torch.float32


def test_pictures_of_one_size_and_guidance_regime_may_share_a_batch() -> None:
    assert batch_key(SPEC) == batch_key(spec_with(prompt="other", seed=1, guidance_scale=9.0, num_inference_steps=3))
    assert batch_key(SPEC) != batch_key(spec_with(width_px=64))
    assert batch_key(SPEC) != batch_key(spec_with(guidance_scale=1.0))


def drop_tokenizer(directory: Path) -> None:
    shutil.rmtree(directory / "tokenizer_2")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: edit_json(path / "unet/config.json", addition_embed_type=None), "addition_embed_type"),
        (lambda path: edit_json(path / "unet/config.json", time_cond_proj_dim=8), "time_cond_proj_dim"),
        (
            lambda path: edit_json(path / "model_index.json", requires_aesthetics_score=True),
            "requires_aesthetics_score",
        ),
        (lambda path: edit_json(path / "model_index.json", text_encoder=[None, None]), "text_encoder"),
        (
            lambda path: edit_json(path / "model_index.json", unet=["diffusers", "SD3Transformer2DModel"]),
            "SD3Transformer2DModel",
        ),
        (
            lambda path: edit_json(path / "model_index.json", force_zeros_for_empty_prompt="yes"),
            "force_zeros_for_empty",
        ),
        (drop_tokenizer, "tokenizer_2"),
    ],
)
def test_an_sdxl_directory_that_is_none_is_refused_by_name(
    xl_checkpoint: Path, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    directory = shutil.copytree(xl_checkpoint, tmp_path / "xl")
    damage(directory)

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load(directory)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda path: edit_json(path / "model_index.json", max_sequence_length=-1), "max_sequence_length"),
        (lambda path: edit_json(path / "model_index.json", max_sequence_length=1e9), "max_sequence_length"),
        (
            lambda path: edit_json(path / "model_index.json", tokenizer_3=["transformers", "AutoTokenizer"]),
            "AutoTokenizer",
        ),
        (lambda path: edit_json(path / "model_index.json", scheduler=["diffusers", "DDIMScheduler"]), "DDIMScheduler"),
        (
            lambda path: edit_json(path / "scheduler/scheduler_config.json", use_dynamic_shifting=True),
            "use_dynamic_shifting",
        ),
        (
            lambda path: edit_json(path / "scheduler/scheduler_config.json", _class_name="DDIMScheduler"),
            "DDIMScheduler",
        ),
    ],
)
def test_a_flow_directory_that_is_none_is_refused_by_name(
    flow_checkpoint: Path, tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    directory = shutil.copytree(flow_checkpoint, tmp_path / "flow")
    damage(directory)

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load(directory)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("version", "side_px"), [("0.6.0.dev0", 256), ("0.9.0", SIDE_PX), ("0.42.1", SIDE_PX), ("of old", SIDE_PX)]
)
def test_sizes_that_releases_before_nine_wrote_are_read_as_diffusers_reads_them(
    checkpoint: Path, tmp_path: Path, version: str, side_px: int
) -> None:
    directory = shutil.copytree(checkpoint, tmp_path / "old")
    edit_json(directory / "unet/config.json", _diffusers_version=version)

    info = load(directory).info

    assert (info.default_width_px, info.default_height_px) == (side_px, side_px)
