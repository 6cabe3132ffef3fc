"""LoRAs in the step engine: on time and late, patched or applied by row, each in its own request only."""

import hashlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lab.fixtures.lycoris_files import write_lycoris
from pentimento.diffusion.denoising import DenoisingRequest, condition, denoise_step, prepare
from pentimento.diffusion.families import DenoiserInput, DiffusionModel, PerSampleAdapters
from pentimento.diffusion.loras import AdapterSet, BaseLayers, WeightedLora, layers_of, read_lora
from pentimento.diffusion.loras.patching import WeightPatch
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import Unavailable
from tests.unit.diffusion.engine.loops import Added, Loop, Scripted
from tests.unit.diffusion.engine.test_batches import assert_same_image, request
from tests.unit.diffusion.loras.made_loras import made_lora

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def base(model: DiffusionModel) -> BaseLayers:
    return layers_of(model.info.family, model.adaptable)


@pytest.fixture(scope="module")
def sets(base: BaseLayers) -> list[AdapterSet]:
    """Return no LoRA, one of all components, one of the denoiser with another rank, and both with their weights."""
    whole, unet = made_lora(base, 1), made_lora(base, 2, rank=2, alpha=1.0, components=["unet"], ends=("to_k", "conv1"))
    return [(), (WeightedLora(whole),), (WeightedLora(unet, 0.6),), (WeightedLora(whole, 0.3), WeightedLora(unet))]


@pytest.fixture(scope="module")
def patched_only(base: BaseLayers, tmp_path_factory: pytest.TempPathFactory) -> AdapterSet:
    """Return a LoHa with magnitudes and a LoRA, which a row of a batch cannot have without a patch of the weights."""
    path = tmp_path_factory.mktemp("forms") / "it.safetensors"
    write_lycoris(path, base, "loha", ("to_q", "attn2.to_k", "conv1"), dora="out")
    lora = made_lora(base, 7, ends=("to_q", "fc1"))
    return (WeightedLora(read_lora(path, base, torch.float32), 0.4), WeightedLora(lora, 0.5))


@dataclass
class Late:
    """LoRAs that arrive after `late_asks` requests; each tick asks once or twice."""

    adapters: AdapterSet
    late_asks: int = 0
    latest_step: int = 0
    error: Exception | None = None

    def take(self, step_index: int) -> AdapterSet | None:
        if self.error is not None:
            raise self.error
        if self.late_asks > 0:
            self.late_asks -= 1
            return None
        return self.adapters


@torch.inference_mode()
def denoised(model: DiffusionModel, asked: DenoisingRequest, adapters: AdapterSet, from_step: int = 0) -> Tensor:
    """Denoise one image with patched weights from a step on."""
    prompts, patch = PromptMemo(model, 8), WeightPatch(model.denoiser, "unet", model.forget_time_terms)
    denoising = prepare(model, prompts, asked)
    while not denoising.done:
        if denoising.state.step_index >= from_step and not patch.held and adapters:
            patch.hold(adapters)
            denoising.conditioning, _ = condition(model, prompts, asked, adapters)
        denoise_step(model, denoising)
    patch.hold(())
    return denoising.state.latent


def assert_denoised_with(model: DiffusionModel, added: Added, adapters: AdapterSet) -> None:
    step = added.finished.lora_patch_step
    assert step is not None
    wanted = denoised(model, added.job.request, adapters, step)
    torch.testing.assert_close(added.heard.latent, wanted, rtol=0, atol=TOLERANCE)


@pytest.fixture(autouse=True)
def _weights_as_they_were(model: DiffusionModel) -> Iterator[None]:
    before = digest(model)
    yield
    assert digest(model) == before


def finish(loop: Loop) -> None:
    """Run to the end and restore the base weights, which other tests share."""
    loop.run()
    loop.steps.restore_weights()


def with_loras(adapters: AdapterSet, seed: int = 1, **late: Any) -> DenoisingRequest:
    return replace(request(seed), loras=Late(adapters, **late))


def digest(model: DiffusionModel) -> str:
    found = hashlib.sha256()
    for component in model.adaptable.values():
        for value in component.state_dict().values():
            found.update(value.numpy().tobytes())
    return found.hexdigest()


def seen_inputs(model: DiffusionModel) -> tuple[Scripted, list[DenoiserInput]]:
    seen: list[DenoiserInput] = []

    def note(_: int, inputs: DenoiserInput, prediction: Tensor) -> Tensor:
        seen.append(inputs)
        return prediction

    return Scripted(model, note), seen


def test_single_set_is_patched_and_has_bits_of_patched_weights(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    denoiser, seen = seen_inputs(model)
    before = digest(model)
    loop = Loop(model, denoiser=denoiser)
    added = loop.add(with_loras(sets[3]))

    loop.run()
    plain = loop.add(request(2))
    loop.run()
    assert digest(model) == before

    assert all(inputs.adapters is None for inputs in seen)
    assert torch.equal(added.heard.latent, denoised(model, added.job.request, sets[3]))
    assert (added.heard.latent - denoised(model, added.job.request, ())).abs().max() > 0.01
    assert_same_image(model, plain)


def test_requests_with_one_set_share_the_patched_weights(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    denoiser, seen = seen_inputs(model)
    loop = Loop(model, denoiser=denoiser)
    added = [loop.add(with_loras(sets[1], seed)) for seed in range(3)]

    finish(loop)

    assert loop.observer.sizes == [3] * 6
    assert all(inputs.adapters is None for inputs in seen)
    for one in added:
        assert_denoised_with(model, one, sets[1])


def test_mixed_batch_shares_passes_with_loras_per_row(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    denoiser, seen = seen_inputs(model)
    before = digest(model)
    loop = Loop(model, denoiser=denoiser)
    plain = loop.add(request(9))
    added = [loop.add(with_loras(adapters, seed)) for seed, adapters in enumerate(sets[1:])]

    finish(loop)

    assert loop.observer.sizes == [4] * 6
    assert all(inputs.adapters is not None for inputs in seen)
    assert_same_image(model, plain)
    for one, adapters in zip(added, sets[1:], strict=True):
        assert_denoised_with(model, one, adapters)
    assert digest(model) == before


def test_a_set_without_small_factors_has_passes_apart(
    model: DiffusionModel, sets: list[AdapterSet], patched_only: AdapterSet
) -> None:
    denoiser, seen = seen_inputs(model)
    loop = Loop(model, denoiser=denoiser)
    mixed = [loop.add(with_loras(adapters, seed)) for seed, adapters in enumerate(sets[1:3])]
    apart = [loop.add(with_loras(patched_only, seed)) for seed in (5, 6)]

    finish(loop)

    assert loop.observer.sizes == [2] * 12
    assert [inputs.adapters is None for inputs in seen].count(True) == 6
    for one, adapters in zip(mixed, sets[1:3], strict=True):
        assert_denoised_with(model, one, adapters)
    for one in apart:
        assert_denoised_with(model, one, patched_only)


def test_passes_apart_and_others_take_turns_with_patched_weights(
    model: DiffusionModel, sets: list[AdapterSet], patched_only: AdapterSet
) -> None:
    denoiser, seen = seen_inputs(model)
    loop = Loop(model, denoiser=denoiser)
    first = loop.add(with_loras(sets[1]))
    loop.tick(2)
    apart = loop.add(replace(with_loras(patched_only, 5), deadline=20.0))
    loop.tick(2)
    second = loop.add(replace(with_loras(sets[1], 6), deadline=10.0))

    finish(loop)

    assert all(inputs.adapters is None for inputs in seen)
    for one, adapters in ((first, sets[1]), (apart, patched_only), (second, sets[1])):
        assert_denoised_with(model, one, adapters)


def test_images_are_the_same_as_requests_join_and_leave(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    """The batch changes from patched to mixed and back in the middle of the first image."""
    denoiser, seen = seen_inputs(model)
    loop = Loop(model, denoiser=denoiser)
    first = loop.add(with_loras(sets[1]))
    loop.tick(2)
    second = loop.add(replace(request(2, first_step=4), loras=Late(sets[2])))
    finish(loop)

    assert [inputs.adapters is not None for inputs in seen] == [False, False, True, True, False, False]
    assert_denoised_with(model, first, sets[1])
    assert_denoised_with(model, second, sets[2])


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    joins=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6), st.integers(0, 5), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_images_in_any_mixture_equal_single_runs(
    joins: list[tuple[int, int, int, int, bool]],
    model: DiffusionModel,
    sets: list[AdapterSet],
    patched_only: AdapterSet,
) -> None:
    loop = Loop(model)
    sets, added = [*sets, patched_only], []
    for number, (ticks, which, late, latest, guided) in enumerate(joins):
        asked = request(number, guidance_scale=3.0 if guided else 1.0)
        source = Late(sets[which], late_asks=late, latest_step=latest)
        added.append((loop.add(replace(asked, loras=source)), which))
        for _ in range(ticks):
            loop.tick()
    for _ in range(200):
        loop.tick()
    finish(loop)

    for one, which in added:
        assert_denoised_with(model, one, sets[which])


def test_late_loras_delay_no_other_request_and_wait_at_latest_step(
    model: DiffusionModel, sets: list[AdapterSet]
) -> None:
    loop = Loop(model)
    source = Late(sets[1], late_asks=1000, latest_step=2)
    late = loop.add(replace(request(1, prompt="late"), loras=source, capture_steps=frozenset({1, 2, 4})))
    plain = loop.add(request(2))

    finish(loop)
    assert late.heard.steps == [1, 2]
    assert plain.heard.steps == [1, 2, 3, 4, 5, 6]
    source.late_asks = 0
    finish(loop)

    assert late.finished.lora_patch_step == 2
    assert_denoised_with(model, late, sets[1])
    assert_same_image(model, plain)


def test_latents_before_patch_equal_run_without_loras(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    steps = frozenset({1, 2, 3, 4})
    alone, late = Loop(model), Loop(model)
    plain = alone.add(replace(request(1), capture_steps=steps))
    source = Late(sets[3], late_asks=1000, latest_step=3)
    adapted = late.add(replace(request(1), capture_steps=steps, loras=source))
    finish(alone)
    finish(late)
    source.late_asks = 0
    finish(late)

    same = [torch.equal(plain.heard.latents[step], adapted.heard.latents[step]) for step in sorted(steps)]
    assert same == [True, True, True, False]


def test_loras_from_the_start_are_awaited_before_anything_is_computed(
    model: DiffusionModel, sets: list[AdapterSet]
) -> None:
    loop = Loop(model)
    source = Late(sets[1], late_asks=1000)
    late = loop.add(replace(request(1), loras=source))

    assert not loop.tick(2)
    assert loop.steps.running_count == 0
    source.late_asks = 0
    finish(loop)

    assert late.finished.lora_patch_step == 0
    assert torch.equal(late.heard.latent, denoised(model, late.job.request, sets[1]))


@pytest.mark.parametrize("latest_step", [0, 3])
def test_loras_that_cannot_be_had_end_their_own_request_with_the_reason(
    latest_step: int, model: DiffusionModel, sets: list[AdapterSet]
) -> None:
    loop = Loop(model)
    before = digest(model)
    source = Late(sets[1], late_asks=1000, latest_step=latest_step)
    lost = loop.add(replace(request(1), loras=source))
    plain = loop.add(request(2))
    loop.tick(2)
    source.error = Unavailable("LORA_LOST", "the loader died twice")

    finish(loop)

    assert isinstance(lost.heard.end, Unavailable) and lost.heard.end.reason == "LORA_LOST"
    assert_same_image(model, plain)
    assert digest(model) == before


def test_replay_is_patched_in_any_batch(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    loop = Loop(model)
    loop.add(with_loras(sets[2], 5))
    replay = loop.add(replace(with_loras(sets[1]), alone=True))

    finish(loop)

    assert torch.equal(replay.heard.latent, denoised(model, replay.job.request, sets[1]))


def test_unused_loras_are_released_before_batch_is_halved(model: DiffusionModel, sets: list[AdapterSet]) -> None:
    """Sets that were mixed lately stay in memory with the weights: some hundred MB each for SDXL."""

    def change(number: int, inputs: DenoiserInput, prediction: Tensor) -> Tensor:
        if any(row() is not None for row in kept):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return prediction

    kept: list[weakref.ref[PerSampleAdapters]] = []
    loop = Loop(model, denoiser=Scripted(model, change))
    mixed = [loop.add(with_loras(adapters, seed)) for seed, adapters in enumerate(sets[1:3])]
    loop.run()
    kept += [weakref.ref(row) for row in loop.steps._adapters._rows._rows.values() if row is not None]
    added = [loop.add(with_loras(adapters, seed)) for seed, adapters in enumerate([sets[0], sets[3]], 5)]

    finish(loop)

    assert len(kept) == 2
    assert loop.observer.refused_batches == []
    for one, adapters in zip((*mixed, *added), (*sets[1:3], sets[0], sets[3]), strict=True):
        assert_denoised_with(model, one, adapters)
