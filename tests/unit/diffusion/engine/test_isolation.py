"""Keep failures within one request: NaN, errors of the network, little memory, thousands of cancels."""

import errno
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest, LatentStart
from pentimento.diffusion.engine.probe import RECOVERY_S, finite_parts, release_unused
from pentimento.diffusion.families import DiffusionModel
from pentimento.domain.errors import Cancelled, Internal, PentimentoError, ResourceExhausted
from tests.unit.diffusion.engine.loops import Loop, Scripted
from tests.unit.diffusion.engine.test_batches import assert_same_image, request
from tests.unit.diffusion.specs import spec_with

STOP = Cancelled("CANCELLED", "no more")


def spoil(rows: slice, at_call: int, value: float) -> Any:
    def change(number: int, inputs: Any, prediction: Tensor) -> Tensor:
        if number == at_call:
            prediction = prediction.clone()
            prediction[rows, 0, 0, 0] = value
        return prediction

    return change


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_values_that_are_not_finite_end_their_own_request_at_once(model: DiffusionModel, value: float) -> None:
    loop = Loop(model, denoiser=Scripted(model, spoil(slice(3, 4), 2, value)))
    added = [loop.add(request(seed)) for seed in range(3)]

    loop.run()

    spoilt = added[1].heard
    assert isinstance(spoilt.end, Internal)
    assert spoilt.end.reason == "NON_FINITE_LATENT"
    assert spoilt.steps == [1, 2]
    assert_same_image(model, added[0])
    assert_same_image(model, added[2])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_finite_parts_names_parts_that_are_not(value: float) -> None:
    for place in ((0, 0, 0, 0), (1, 3, 7, 7)):
        rows = torch.full((6, 4, 8, 8), torch.finfo(torch.float16).max, dtype=torch.float16)
        rows[2:4][place] = value

        assert finite_parts(rows, 3) == [True, False, True]
        assert finite_parts(rows[:2], 1) == [True]
        assert finite_parts(rows[:0], 0) == []


def test_failing_request_is_found_in_batch_and_ends_alone(model: DiffusionModel) -> None:
    def change(number: int, inputs: Any, prediction: Tensor) -> Tensor:
        if (inputs.latents.abs() > 50).any():
            raise RuntimeError("a prompt might be quoted here")
        return prediction

    loop = Loop(model, denoiser=Scripted(model, change))
    good = [loop.add(request(seed)) for seed in range(3)]
    poison = loop.add(
        DenoisingRequest(spec_with(num_inference_steps=6), LatentStart(torch.full((1, 4, 8, 8), 99.0), 1))
    )

    loop.run()

    assert isinstance(poison.heard.end, Internal)
    assert "prompt" not in poison.heard.end.message
    assert poison.heard.steps == []
    for one in good:
        assert one.heard.steps == [1, 2, 3, 4, 5, 6]
        assert_same_image(model, one)


def at_most(rows: int, error: Exception) -> Any:
    def change(number: int, inputs: Any, prediction: Tensor) -> Tensor:
        if len(inputs.latents) > rows:
            raise error
        return prediction

    return change


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=["cuda", "cpu", "mapping", "python"])
def test_a_batch_that_does_not_fit_the_device_is_halved_and_reported(model: DiffusionModel, error: Exception) -> None:
    denoiser = Scripted(model, at_most(4, error))
    loop = Loop(model, denoiser=denoiser)
    added = [loop.add(request(seed)) for seed in range(4)]

    loop.run()

    assert loop.observer.refused_batches == [4]
    assert denoiser.releases == 1
    assert loop.observer.sizes == [2] * 12
    for one in added:
        assert_same_image(model, one)


@pytest.mark.parametrize(("device", "releases"), [("cuda", 1), ("cpu", 0)])
def test_blocks_cut_for_large_batches_go_back_to_the_device(
    device: str, releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: released.append(device))

    release_unused(torch.device(device))

    assert len(released) == releases


def test_batches_grow_again_once_the_memory_may_be_back(model: DiffusionModel) -> None:
    scripted = Scripted(model, at_most(4, NO_MEMORY[0]))
    loop = Loop(model, denoiser=scripted)
    for seed in range(4):
        loop.add(request(seed))
    loop.tick()
    scripted._change = lambda number, inputs, prediction: prediction
    loop.tick()
    loop.now = RECOVERY_S
    loop.tick()

    assert loop.observer.sizes == [2, 2, 2, 4]


def test_unused_memory_is_released_before_batch_is_halved(model: DiffusionModel) -> None:
    """Buffers of SDXL take 400 MB for each size that was generated lately."""

    def change(number: int, inputs: Any, prediction: Tensor) -> Tensor:
        if any(buffers() is not None for buffers in kept):
            raise NO_MEMORY[0]
        return prediction

    kept: list[weakref.ref[Any]] = []
    loop = Loop(model, denoiser=Scripted(model, change))
    before = loop.add(request(1, width_px=64))
    loop.run()
    kept += [weakref.ref(rows) for rows in loop.steps._groups.values()]
    added = [loop.add(request(seed)) for seed in range(2)]

    loop.run()

    assert len(kept) == 1
    assert loop.observer.refused_batches == []
    for one in (before, *added):
        assert_same_image(model, one)


def test_request_beyond_device_memory_ends_as_out_of_memory(model: DiffusionModel) -> None:
    loop = Loop(model, denoiser=Scripted(model, at_most(0, NO_MEMORY[0])))
    added = loop.add(request(1))

    loop.run()

    assert isinstance(added.heard.end, ResourceExhausted)
    assert added.heard.end.reason == "DEVICE_OUT_OF_MEMORY"


@pytest.mark.parametrize("unprepared", [False, True], ids=["its listener raises", "it cannot be prepared"])
def test_request_that_fails_ends_alone(model: DiffusionModel, unprepared: bool) -> None:
    loop = Loop(model, max_batch=1 if unprepared else 4)
    bad = loop.add(request(1, num_inference_steps=1000 if unprepared else 6))
    good = loop.add(request(2))
    bad.heard.at_step[3] = lambda: 1 / 0

    loop.run()

    assert isinstance(bad.heard.end, PentimentoError if unprepared else Internal)
    assert_same_image(model, good)


@pytest.mark.parametrize("other_runs", [True, False])
def test_stopped_request_is_freed_by_next_tick(model: DiffusionModel, other_runs: bool) -> None:
    loop = Loop(model)
    if other_runs:
        loop.add(request(1))
    start = torch.randn(1, 4, 8, 8)
    stopped = loop.add(DenoisingRequest(spec_with(num_inference_steps=6), LatentStart(start, 1)))
    loop.tick(2)
    latents = [weakref.ref(tensor) for tensor in gc.get_objects() if is_latent(tensor)]
    stopped.job.stop(STOP)
    held = weakref.ref(start)
    del start, stopped
    loop.tick()

    assert held() is None
    assert sum(latent() is not None for latent in latents) <= len(latents) - 1


def is_latent(thing: object) -> bool:
    return type(thing) is Tensor and thing.shape == (1, 4, 8, 8)


def engine_objects() -> int:
    """Count tensors and objects of the engine that are alive."""
    own = (one for one in gc.get_objects() if type(one).__module__.startswith(("pentimento.diffusion", "torch")))
    return sum(1 for _ in own)


def test_thousands_of_cancels_leave_nothing_behind(model: DiffusionModel) -> None:
    loop = Loop(model)
    survivor = loop.add(request(0, num_inference_steps=21))
    loop.tick()
    gc.collect()
    before = engine_objects()
    for _ in range(10):
        tickets = [loop.add(request(1)).job for _ in range(300)]
        loop.tick()  # some begin
        for ticket in tickets:
            ticket.stop(STOP)
        loop.tick()
    del tickets, ticket
    gc.collect()

    assert loop.steps.idle
    assert engine_objects() - before < 300
    assert_same_image(model, survivor)
