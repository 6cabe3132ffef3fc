"""Compiled forward passes: only what was warmed, padded to it, and the same pictures."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pentimento.diffusion.engine import CompiledDenoiser, CompileMode, batch_sizes_up_to
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, DiffusionModel
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_batches import assert_same_picture, request
from tests.unit.diffusion.engine.test_seams import residuals

KEY = BatchKey(32, 32, guided=True)


@pytest.fixture
def denoiser(model: DiffusionModel) -> CompiledDenoiser:
    """Everything but the compiler, which takes a minute."""
    made = CompiledDenoiser(model, CompileMode.COMPILE, compiler=lambda forward, **options: forward)
    with torch.inference_mode():
        made.warm(KEY, (1, 3))
    return made


def test_a_batch_is_padded_to_the_next_warm_size(denoiser: CompiledDenoiser) -> None:
    assert [denoiser.padded(KEY, count) for count in (1, 2, 3, 4)] == [1, 3, 3, 4]
    assert denoiser.padded(replace(KEY, guided=False), 2) == 2


def test_pictures_in_padded_batches_are_what_they_are_alone(model: DiffusionModel, denoiser: CompiledDenoiser) -> None:
    loop = Loop(model, denoiser=denoiser)
    added = [loop.add(request(seed)) for seed in range(2)]

    loop.run()

    assert [(report.request_count, report.row_count) for report in loop.observer.batches] == [(2, 6)] * 6
    for one in added:
        assert_same_picture(model, one)


def test_what_was_not_warmed_runs_without_a_compiler(model: DiffusionModel, denoiser: CompiledDenoiser) -> None:
    compiled: list[int] = []
    run = denoiser._run
    denoiser._run = lambda inputs: (compiled.append(len(inputs.latents)), run(inputs))[1]  # type: ignore[method-assign]
    with torch.inference_mode():
        warm, cold = example_input(model, KEY, 6), example_input(model, KEY, 4)
        controlled = replace(warm, residuals=residuals(0, rows=6))
        for inputs in (warm, cold, controlled):
            torch.testing.assert_close(denoiser.predict(inputs), model.predict(inputs), rtol=0, atol=1e-5)

    assert compiled == [6]


@pytest.mark.slow
@torch.inference_mode()
def test_the_forward_pass_can_be_traced_as_one_graph_and_gives_the_same_prediction(model: DiffusionModel) -> None:
    def trace(forward: Any, **options: Any) -> Any:
        return torch.compile(forward, dynamic=options["dynamic"], backend="eager", fullgraph=True)

    denoiser = CompiledDenoiser(model, CompileMode.COMPILE, compiler=trace)
    denoiser.warm(KEY, (1,))
    inputs = example_input(model, KEY, 2)

    torch.testing.assert_close(denoiser.predict(inputs), model.predict(inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_batch_sizes_double_up_to_the_largest(most: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes_up_to(most) == sizes
