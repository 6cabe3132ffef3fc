"""FLUX.2 in the step engine: batches of mixed steps and starts, patched latents, a schedule by size and steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Pipeline
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

from lab.fixtures.checkpoints import SIDE_PX
from lab.fixtures.flow_checkpoints import FLUX_2_DEV_TOKENS, FLUX_2_TOKENS, write_klein_checkpoint
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart, schedule_for
from pentimento.diffusion.families import DiffusionModel
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.specs import denoise, load, spec_with

FLOW = spec_with(scheduler=Scheduler.FLOW_MATCH_EULER)
# A latent's cells have 8 pixels a side here: 4 of the autoencoder, in patches of 2.
CELLS = SIDE_PX // 8


@pytest.fixture(scope="module")
def klein(klein_checkpoint: Path) -> DiffusionModel:
    return load(klein_checkpoint)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    return load(write_klein_checkpoint(tmp_path_factory.mktemp("base") / "model", is_distilled=False))


@pytest.fixture(scope="module")
def dev(flux_2_checkpoint: Path) -> DiffusionModel:
    return load(flux_2_checkpoint)


def latent_of(seed: int) -> torch.Tensor:
    return torch.randn(1, 16, CELLS, CELLS, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["klein", "base", "dev"])
def test_batch_of_mixed_requests_gives_images_alone(name: str, request: pytest.FixtureRequest) -> None:
    model: DiffusionModel = request.getfixturevalue(name)
    pixels = torch.rand(1, 3, SIDE_PX, SIDE_PX, generator=torch.Generator().manual_seed(3)) * 2 - 1
    mask = torch.zeros(1, 1, SIDE_PX, SIDE_PX)
    mask[..., : SIDE_PX // 2] = 1.0
    requests = [
        DenoisingRequest(replace(FLOW, prompt="a", negative_prompt=""), NoiseStart(), preview_interval_steps=2),
        DenoisingRequest(replace(FLOW, seed=8, num_inference_steps=5, guidance_scale=7.0), NoiseStart()),
        DenoisingRequest(replace(FLOW, prompt="other"), LatentStart(latent_of(1), 3)),
        DenoisingRequest(FLOW, ImageStart(pixels, 2, mask)),
        DenoisingRequest(FLOW, NoiseStart(), thinned_steps=(2, 4, 7)),
    ]
    loop = Loop(model, max_batch=8)

    added = [loop.add(one) for one in requests]
    loop.run()

    assert max(batch.request_count for batch in loop.observer.batches) == len(requests)
    for one, asked in zip(added, requests, strict=True):
        torch.testing.assert_close(one.heard.latent, denoise(model, asked), rtol=0, atol=1e-5)
    assert added[0].heard.previews == [2, 4, 6]
    known = model.encode_image(pixels, torch.Generator().manual_seed(FLOW.seed))[..., CELLS // 2 :]
    torch.testing.assert_close(added[3].heard.latent[..., CELLS // 2 :], known, rtol=0, atol=1e-5)


def test_resumed_latent_gives_the_bits_of_the_whole_run(base: DiffusionModel) -> None:
    loop = Loop(base)
    whole = loop.add(DenoisingRequest(FLOW, NoiseStart(), capture_steps=frozenset({3})))
    loop.run()

    resumed = denoise(base, DenoisingRequest(FLOW, LatentStart(whole.heard.latents[3], 3)))

    assert torch.equal(resumed, whole.heard.latent)


@torch.inference_mode()
def test_language_model_of_klein_has_27_layers_and_bits_of_diffusers(
    klein: DiffusionModel, klein_checkpoint: Path
) -> None:
    pipeline = Flux2KleinPipeline.from_pretrained(klein_checkpoint, dtype=torch.float32)
    whole = pipeline.text_encoder.model

    states = klein.encode_prompt("a").conditioning.states

    theirs = pipeline._get_qwen3_prompt_embeds(whole, pipeline.tokenizer, "a", max_sequence_length=FLUX_2_TOKENS)
    assert torch.equal(states, theirs)
    check_is_cut(klein.networks["text_encoder"], whole, layer_count=27)


@torch.inference_mode()
def test_language_model_of_dev_has_30_layers_and_bits_of_diffusers(
    dev: DiffusionModel, flux_2_checkpoint: Path
) -> None:
    pipeline = Flux2Pipeline.from_pretrained(flux_2_checkpoint, dtype=torch.float32)
    whole = pipeline.text_encoder

    states = dev.encode_prompt("a").conditioning.states

    theirs = pipeline._get_mistral_3_small_prompt_embeds(
        whole, pipeline.tokenizer, "a", max_sequence_length=FLUX_2_DEV_TOKENS
    )
    assert torch.equal(states, theirs)
    check_is_cut(dev.networks["text_encoder"], whole.model.language_model, layer_count=30)


def check_is_cut(found: torch.nn.Module, whole: torch.nn.Module, layer_count: int) -> None:
    """Check that a network has the tokens and the first layers of `whole`, and nothing else."""
    kept = [*whole.embed_tokens.parameters(), *whole.layers[:layer_count].parameters()]
    assert len(whole.layers) == layer_count + 1
    assert sum(one.nbytes for one in found.parameters()) == sum(one.nbytes for one in kept)


@torch.inference_mode()
def test_latents_of_images_equal_diffusers(klein: DiffusionModel, klein_checkpoint: Path) -> None:
    pipeline = Flux2KleinPipeline.from_pretrained(klein_checkpoint, dtype=torch.float32)
    pixels = torch.rand(1, 3, SIDE_PX, 2 * SIDE_PX) * 2 - 1
    vae: AutoencoderKLFlux2 = pipeline.vae
    mean, variance = vae.bn.running_mean.view(1, -1, 1, 1), vae.bn.running_var.view(1, -1, 1, 1)

    latent = klein.encode_image(pixels, torch.Generator())

    torch.testing.assert_close(latent, pipeline._encode_vae_image(pixels, torch.Generator()), rtol=0, atol=1e-5)
    cells = pipeline._unpatchify_latents(latent * torch.sqrt(variance + vae.config.batch_norm_eps) + mean)
    torch.testing.assert_close(klein.decode_latent(latent), vae.decode(cells).sample, rtol=0, atol=1e-5)
    assert latent.shape == klein.latent_shape(2 * SIDE_PX, SIDE_PX) == (1, 16, CELLS, 2 * CELLS)


@torch.inference_mode()
def test_large_image_is_decoded_in_tiles(tmp_path: Path) -> None:
    model = load(write_klein_checkpoint(tmp_path / "model"))
    latent = torch.zeros(model.latent_shape(4 * SIDE_PX, SIDE_PX))
    whole = model.decode_latent(latent)

    model.tile_decoder(SIDE_PX)

    assert model.decode_latent(latent).shape == whole.shape == (1, 3, SIDE_PX, 4 * SIDE_PX)
    with pytest.raises(ValueError, match=r"at least 32 pixels"):
        model.tile_decoder(SIDE_PX - 1)


@pytest.mark.parametrize(("side_px", "steps"), [(256, 4), (256, 50), (528, 4), (1024, 28)])
def test_schedule_is_shifted_by_size_and_steps_as_diffusers_does(
    side_px: int, steps: int, klein: DiffusionModel
) -> None:
    tokens = (side_px // 8) ** 2
    theirs = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    even = torch.linspace(1.0, 1 / steps, steps, dtype=torch.float64).tolist()
    theirs.set_timesteps(sigmas=even, mu=compute_empirical_mu(tokens, steps))

    found = schedule_for(klein, replace(FLOW, width_px=side_px, height_px=side_px, num_inference_steps=steps))

    assert klein.image_tokens(side_px, side_px) == tokens
    torch.testing.assert_close(found.timesteps, theirs.timesteps, rtol=1e-6, atol=0)


def test_prompt_has_the_tokens_of_index_or_of_diffusers(
    klein: DiffusionModel, dev: DiffusionModel, tmp_path: Path
) -> None:
    usual = load(write_klein_checkpoint(tmp_path / "model", max_sequence_length=None))
    with torch.inference_mode():
        found = [model.encode_prompt(prompt) for model in (klein, dev, usual) for prompt in ("a", "a" * 60)]

    counts = [states.conditioning.states.shape for states in found]
    assert counts == [
        (1, FLUX_2_TOKENS, 48),
        (1, FLUX_2_TOKENS, 48),
        (1, FLUX_2_DEV_TOKENS, 48),
        (1, FLUX_2_DEV_TOKENS, 48),
        (1, 512, 48),
        (1, 512, 48),
    ]
    assert [states.truncated for states in found] == [False, True, False, True, False, False]


@torch.inference_mode()
def test_mark_of_an_image_is_removed_from_prompts_of_dev_alone(klein: DiffusionModel, dev: DiffusionModel) -> None:
    marked, plain = (
        [model.encode_prompt(prompt).conditioning.states for model in (klein, dev)] for prompt in ("a[IMG]b", "ab")
    )

    assert [torch.equal(*pair) for pair in zip(marked, plain, strict=True)] == [False, True]


def test_guidance_takes_two_rows_of_base_and_is_an_input_of_dev(
    klein: DiffusionModel, base: DiffusionModel, dev: DiffusionModel
) -> None:
    requests = [DenoisingRequest(replace(FLOW, guidance_scale=scale), NoiseStart()) for scale in (1.5, 7.0)]
    models = (klein, base, dev)

    changed = [not torch.equal(*(denoise(model, request) for request in requests)) for model in models]

    assert changed == [False, True, True]
    assert [model.info.is_guided(4.0) for model in models] == [False, True, False]


def test_files_of_a_published_repository_are_ignored(klein_checkpoint: Path, tmp_path: Path) -> None:
    directory = write_klein_checkpoint(tmp_path / "FLUX.2-klein-4B")
    (directory / "flux-2-klein-4b.safetensors").write_bytes(b"the release's own file")
    (directory / "README.md").write_text("a model card")

    found = load(directory).info

    assert found.model_digest == load(klein_checkpoint).info.model_digest
    assert (found.family, found.size_multiple_px) == ("flux_2", 8)


def test_clip_skip_and_syntax_are_refused_by_name(klein: DiffusionModel) -> None:
    with pytest.raises(InvalidArgument, match="prompt_syntax: must be unset with the family flux_2"):
        klein.chunk_count(parse_prompt("(a:1.2)", PromptSyntax.A1111))
    with pytest.raises(InvalidArgument, match="clip_skip: must be 0"):
        klein.encode_prompt("a", clip_skip=1)
