"""Deadlines, preemption and the memory budget, as the loop carries them out."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pentimento.diffusion.engine import BatchLimits, MemoryBudget, MemoryModel
from pentimento.diffusion.engine.probe import RECOVERY_S, MemoryPoint, fit_memory
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.domain.errors import DeadlineExceeded, InvalidArgument
from tests.unit.diffusion.engine.loops import Loop, Scripted
from tests.unit.diffusion.engine.test_batches import assert_same_image, request

MIB = 2**20


def test_short_deadline_preempts_long_one_until_it_ends(model: DiffusionModel) -> None:
    loop = Loop(model, max_batch=1)
    long = loop.add(request(1))
    loop.tick(2)
    short = loop.add(replace(request(2, first_step=4), deadline=5.0))

    loop.tick(2)
    assert short.heard.steps == [5, 6]
    assert long.heard.steps == [1, 2]
    loop.run()

    assert loop.observer.preemptions == [1]
    assert_same_image(model, long)
    assert_same_image(model, short)


def test_a_small_image_takes_turns_with_a_large_one_that_came_before(model: DiffusionModel) -> None:
    def one_step(call: int, inputs: Any, prediction: torch.Tensor) -> torch.Tensor:
        loop.now += 0.8 if inputs.latents.shape[-1] > 8 else 0.01
        return prediction

    loop = Loop(model, denoiser=Scripted(model, one_step))
    large = loop.add(request(1, width_px=64, height_px=64, num_inference_steps=20))
    loop.tick(2)
    small = loop.add(request(2))
    loop.tick(1 + 6)

    assert small.heard.over.is_set()
    assert large.heard.steps == [1, 2, 3]
    loop.run()
    assert_same_image(model, small)
    assert_same_image(model, large)


def test_without_preemption_first_begun_ends_first(model: DiffusionModel) -> None:
    loop = Loop(model, max_batch=1, preempt=False)
    long = loop.add(request(1))
    loop.tick(2)
    short = loop.add(replace(request(2), deadline=5.0))

    loop.tick(4)

    assert long.heard.over.is_set()
    assert short.heard.steps == []
    assert loop.observer.preemptions == []


def test_of_a_full_batch_only_the_least_urgent_gives_way(model: DiffusionModel) -> None:
    loop = Loop(model, max_batch=2)
    first = loop.add(request(1))
    loop.tick()
    second = loop.add(replace(request(2), deadline=20.0))
    loop.tick()
    third = loop.add(replace(request(3), deadline=10.0))
    loop.tick()

    assert (first.heard.steps, second.heard.steps, third.heard.steps) == ([1, 2], [1, 2], [1])


def test_the_aging_limit_bounds_the_wait_behind_short_deadlines(model: DiffusionModel) -> None:
    loop = Loop(model, max_batch=1, aging_limit_s=10.0)
    aged = loop.add(request(1))
    loop.now = 11.0
    loop.add(replace(request(2), deadline=12.0))

    loop.tick()

    assert aged.heard.steps == [1]


def test_a_deadline_that_passes_ends_a_request_wherever_it_is(model: DiffusionModel) -> None:
    loop = Loop(model, max_batch=1)
    running = loop.add(replace(request(1), deadline=5.0))
    waiting = loop.add(replace(request(2), deadline=6.0))
    loop.tick()
    loop.now = 7.0
    loop.tick()

    assert isinstance(running.heard.end, DeadlineExceeded)
    assert isinstance(waiting.heard.end, DeadlineExceeded)
    assert waiting.heard.start is None
    assert loop.steps.idle


def test_observer_receives_waiting_times(model: DiffusionModel) -> None:
    loop = Loop(model, max_batch=1)
    loop.add(request(1, first_step=5))
    loop.add(request(2, first_step=5))
    loop.tick()
    loop.now = 3.0
    loop.run()

    assert loop.observer.waits_s == [0.0, 3.0]


GUIDED = BatchKey(100, 100, guided=True)
PLAIN = BatchKey(100, 100, guided=False)
# 10 MiB for the weights, and 1 MiB a row of 100 x 100 pixels.
MODEL = MemoryModel(10 * MIB, MIB / 10_000)


def limits(budget_mib: int, max_batch: int = 8) -> BatchLimits:
    made = BatchLimits(max_batch, None, lambda: 0.0)
    made.set_budget(MemoryBudget(budget_mib * MIB, MODEL))
    return made


@pytest.mark.parametrize(
    ("key", "decoder_bytes", "most"),
    [(GUIDED, 0.0, 2), (PLAIN, 0.0, 5), (BatchKey(100, 50, guided=True), 0.0, 5), (PLAIN, 2 * MIB / 10_000, 3)],
)
def test_batch_limit_fits_budget_with_decoder(key: BatchKey, decoder_bytes: float, most: int) -> None:
    made = limits(15)
    made.set_budget(MemoryBudget(15 * MIB, replace(MODEL, decoder_bytes_per_pixel=decoder_bytes)))

    assert made.limit(key) == most


def test_check_rejects_size_beyond_budget() -> None:
    with pytest.raises(InvalidArgument, match=r"200x200 pixels with guidance need about 18 MiB.*15 MiB") as refused:
        limits(15).check(BatchKey(200, 200, guided=True))
    assert refused.value.violations[0].field == "spec.width_px"
    limits(15).check(GUIDED)
    BatchLimits(8, None, lambda: 0.0).check(BatchKey(10**6, 10**6, guided=True))


def test_a_batch_that_ran_out_of_memory_is_halved_for_a_while() -> None:
    now = [0.0]
    made = BatchLimits(8, None, lambda: now[0])
    made.ran_out(GUIDED, 8)
    halved = made.limit(GUIDED)
    patched = made.limit(replace(GUIDED, patched=(("sha256:1", 1.0),)))
    now[0] = RECOVERY_S

    assert (halved, patched, made.limit(PLAIN), made.limit(GUIDED)) == (4, 4, 8, 8)


def test_fit_memory_never_lies_below_measured_points() -> None:
    points = [MemoryPoint(2, 100, 1000), MemoryPoint(4, 100, 1900), MemoryPoint(8, 100, 2400)]

    fitted = fit_memory(points)

    assert all(fitted.peak_bytes(point.rows, point.pixels) >= point.peak_bytes for point in points)
    assert fitted.bytes_per_pixel == pytest.approx(900 / 200)
    assert fit_memory(points[:1]).peak_bytes(4, 100) == 2000
