"""Denoise images in changing batches: each equals its run alone, and the same history gives the same bits."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.diffusion.denoising import DenoisingRequest, ImageStart, LatentStart, NoiseStart, model_input, prepare
from pentimento.diffusion.families import BatchKey, DiffusionModel, load_model
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import Cancelled
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Added, Loop, Scripted
from tests.unit.diffusion.specs import denoise, run_steps, spec_with

TOLERANCE = 1e-4
STOP = Cancelled("CANCELLED", "no more")


@pytest.fixture(scope="module")
def noisy_model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    """Return a model with a schedule that ends in nearly pure noise, as the zoo's does."""
    noisy = {"prediction_type": "v_prediction", "beta_schedule": "squaredcos_cap_v2", "timestep_spacing": "trailing"}
    directory = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "noisy", **noisy)
    return load_model(directory, torch.device("cpu"), torch.float32)


def request(seed: int = 7, first_step: int = 0, **changes: Any) -> DenoisingRequest:
    spec = spec_with(**{"seed": seed, "prompt": f"picture {seed}", "num_inference_steps": 6, **changes})
    if first_step == 0:
        return DenoisingRequest(spec, NoiseStart())
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
    return DenoisingRequest(spec, LatentStart(latent, first_step))


def assert_same_image(model: DiffusionModel, added: Added) -> None:
    alone = denoise(model, added.job.request)
    torch.testing.assert_close(added.heard.latent, alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [
        ([request(seed) for seed in range(3)], [3] * 6),
        ([request(1), request(2, guidance_scale=1.0), request(3, width_px=64), request(4)], [1] * 12 + [2] * 6),
        (
            [
                request(1),
                request(2, scheduler=Scheduler.EULER, num_inference_steps=4),
                request(3, eta=0.8, num_inference_steps=5),
                request(4, guidance_scale=7.5),
            ],
            [2, 3, 4, 4, 4, 4],
        ),
    ],
    ids=["alike", "other sizes and guidance", "samplers and step counts"],
)
def test_requests_of_one_size_and_guidance_share_passes(
    model: DiffusionModel, requests: list[DenoisingRequest], sizes: list[int]
) -> None:
    loop = Loop(model)
    added = [loop.add(one) for one in requests]

    loop.run()

    assert sorted(loop.observer.sizes) == sizes
    for one in added:
        assert_same_image(model, one)


def test_request_marked_alone_shares_no_pass_and_keeps_its_bits(
    model: DiffusionModel,
) -> None:
    loop = Loop(model)
    others = [loop.add(request(seed)) for seed in range(2)]
    alone = [loop.add(replace(request(seed, guidance_scale=1.0), alone=True)) for seed in (7, 8)]
    plain = loop.add(request(9, guidance_scale=1.0))

    loop.run()

    assert sorted(loop.observer.sizes) == [1] * 18 + [2] * 6
    for one in alone:
        assert one.heard.latent is not None
        assert torch.equal(one.heard.latent, denoise(model, one.job.request))
    for one in (*others, plain):
        assert_same_image(model, one)


def test_a_request_joins_at_its_own_step_and_leaves_when_it_is_done(model: DiffusionModel) -> None:
    loop = Loop(model)
    long = loop.add(request(1))
    loop.tick(2)
    short = loop.add(request(2, first_step=4))

    loop.run()

    assert loop.observer.sizes == [1, 1, 2, 2, 1, 1]
    assert short.heard.start == (4, 6)
    assert short.heard.steps == [5, 6]
    assert_same_image(model, long)
    assert_same_image(model, short)


def test_observer_receives_size_and_wait_of_each_step(model: DiffusionModel) -> None:
    loop = Loop(model)
    loop.add(request(1))
    for now in (0.0, 2.0):
        loop.now = now
        loop.tick()
    loop.add(request(2, num_inference_steps=1))
    loop.now = 5.0
    loop.tick(2)
    shared = Loop(model, max_batch=1)
    shared.add(request(4))
    shared.tick()
    shared.add(replace(request(5, num_inference_steps=2), deadline=20.0))
    for now in (2.0, 5.0, 9.0):
        shared.now = now
        shared.tick()
    unguided = Loop(model)
    unguided.add(request(3, guidance_scale=1.0, width_px=64, num_inference_steps=1))
    unguided.tick()

    key = BatchKey(32, 32, guided=True)
    assert loop.observer.steps == [(key, 0.0, True), (key, 2.0, True), (key, 3.0, False), (key, 0.0, True)]
    # The second request's two steps come between those of the first.
    assert [seconds for _, seconds, _ in shared.observer.steps] == [0.0, 0.0, 3.0, 4.0]
    assert unguided.observer.steps == [(BatchKey(64, 32, guided=False), 0.0, True)]


def test_stored_image_leaves_the_batch_without_a_step(model: DiffusionModel) -> None:
    loop = Loop(model)
    other = loop.add(request(1))
    pixels = torch.zeros(1, 3, 64, 64)
    stored = loop.add(replace(request(2), start=ImageStart(pixels, 6)))

    loop.run()

    assert loop.observer.sizes == [1] * 6
    assert (stored.heard.start, stored.heard.steps) == ((6, 6), [])
    assert torch.equal(stored.heard.latent, denoise(model, stored.job.request))
    assert_same_image(model, other)


def test_a_batch_of_one_gives_the_bits_of_the_image_alone(model: DiffusionModel) -> None:
    loop = Loop(model)
    added = loop.add(request(1))

    loop.run()

    assert torch.equal(added.heard.latent, denoise(model, added.job.request))


def test_captures_and_previews_come_from_inside_a_batch(model: DiffusionModel) -> None:
    loop = Loop(model)
    loop.add(request(1))
    watched = request(2)
    added = loop.add(DenoisingRequest(watched.spec, watched.start, frozenset({2, 4}), preview_interval_steps=3))

    loop.run()

    assert added.heard.previews == [3]
    assert set(added.heard.latents) == {2, 4}
    alone = run_steps(model, prepare(model, PromptMemo(model, 8), watched), until=4)
    torch.testing.assert_close(added.heard.latents[4], alone.state.latent, rtol=0, atol=TOLERANCE)


def test_device_seconds_of_batchmates_add_up_to_the_time_of_the_steps(model: DiffusionModel) -> None:
    loop = Loop(model)
    added = [loop.add(request(seed)) for seed in range(2)]
    one = added[0].heard
    one.at_step = {step: lambda: setattr(loop, "now", loop.now + 1.0) for step in range(1, 7)}

    loop.run()

    spent = sum(report.seconds for report in loop.observer.batches)
    assert sum(each.finished.device_s for each in added) == pytest.approx(spent)


@dataclass
class Joins:
    """A history of batches: arrivals by tick, and the tick of each stop."""

    arrivals: list[tuple[int, DenoisingRequest]]
    stops: dict[int, int] = field(default_factory=dict)


@st.composite
def histories(draw: st.DrawFn) -> Joins:
    arrivals = [
        (
            draw(st.integers(0, 8)),
            request(
                seed,
                first_step=draw(st.sampled_from([0, 0, 1, 3])),
                num_inference_steps=draw(st.integers(4, 6)),
                scheduler=draw(st.sampled_from([Scheduler.DDIM, Scheduler.EULER])),
                guidance_scale=draw(st.sampled_from([3.0, 3.0, 3.0, 1.0])),
            ),
        )
        for seed in range(draw(st.integers(2, 6)))
    ]
    stops = draw(st.dictionaries(st.integers(0, len(arrivals) - 1), st.integers(0, 10), max_size=2))
    return Joins(sorted(arrivals, key=lambda pair: pair[0]), stops)


def play(model: DiffusionModel, history: Joins) -> list[Added]:
    loop = Loop(model, max_batch=3)
    added: list[Added] = []
    for tick in range(60):
        added += [loop.add(one) for time, one in history.arrivals if time == tick]
        for number, time in history.stops.items():
            if time == tick and number < len(added):
                added[number].job.stop(STOP)
        loop.tick()
    assert all(one.heard.end is not None for one in added)
    return added


@pytest.mark.slow
@given(history=histories())
@settings(max_examples=12, deadline=None)
def test_image_is_that_of_one_alone_in_any_history(model: DiffusionModel, history: Joins) -> None:
    """A guided one to the bit; and the same history twice gives the same bits."""
    for one, other in zip(play(model, history), play(model, history), strict=True):
        assert isinstance(one.heard.end, Cancelled) == isinstance(other.heard.end, Cancelled)
        if isinstance(one.heard.end, Cancelled):
            continue
        assert torch.equal(one.heard.latent, other.heard.latent)
        assert_same_image(model, one)
        if one.job.request.spec.guidance_scale > 1.0:
            assert torch.equal(one.heard.latent, denoise(model, one.job.request))


def test_unguided_image_leaves_pure_noise_as_in_single_run(noisy_model: DiffusionModel) -> None:
    predictions: list[Tensor] = []

    def keep(number: int, inputs: object, prediction: Tensor) -> Tensor:
        predictions.append(prediction)
        return prediction

    loop = Loop(noisy_model, denoiser=Scripted(noisy_model, keep))
    loop.add(request(1, first_step=3, guidance_scale=1.0))
    asked = loop.add(request(2, guidance_scale=1.0, scheduler=Scheduler.EULER)).job.request

    loop.tick()

    with torch.inference_mode():
        denoising = prepare(noisy_model, PromptMemo(noisy_model, 8), asked)
        alone = noisy_model.predict(model_input(noisy_model, denoising))
    assert torch.equal(predictions[0][1:], alone)
