"""Images in a shared forward pass have the same bits as alone, in every family."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pentimento.diffusion.families import (
    AsAlone,
    DenoiserInput,
    DiffusionModel,
    LowRankUpdate,
    PerSampleAdapters,
    row_kernels,
)
from tests.support.torch_threads import torch_threads
from tests.unit.diffusion.specs import load, part_of, rows_of

# From 16 rows on torch takes another convolution for 1x1 kernels.
BATCHES = (3, 17)


@pytest.fixture
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


def batch_of(model: DiffusionModel, row_count: int) -> DenoiserInput:
    timesteps = torch.randint(1, 999, (row_count,), generator=torch.Generator().manual_seed(1)).float()
    return rows_of(model, [f"picture {row}" for row in range(row_count)], timesteps)


@torch.inference_mode()
def alone(model: DiffusionModel, inputs: DenoiserInput, rows_each: int) -> torch.Tensor:
    starts = range(0, inputs.latents.shape[0], rows_each)
    return torch.cat([model.predict(part_of(inputs, slice(start, start + rows_each))) for start in starts])


def assert_held(model: DiffusionModel, rows_each: int) -> None:
    for count in BATCHES:
        inputs = batch_of(model, count * rows_each)
        wanted = alone(model, inputs, rows_each)
        held = replace(inputs, as_alone=AsAlone(rows_each, tuple(range(count))))
        with torch.inference_mode():
            passes = [model.predict(held) for _ in range(2)]  # the first finds the layers, the second knows them

        assert all(torch.equal(together, wanted) for together in passes)


@pytest.mark.parametrize(
    ("loaded", "rows_each"),
    # The flow's layers of 16 values are no multiple of 32, which single rows need.
    [("model", 2), ("xl_model", 2), ("flow_model", 2), ("model", 1), ("xl_model", 1)],
)
def test_images_of_a_batch_have_the_bits_of_one_alone(
    loaded: str, rows_each: int, request: pytest.FixtureRequest
) -> None:
    assert_held(request.getfixturevalue(loaded), rows_each)


def test_a_processor_with_other_bounds_keeps_the_bits(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_kernels, "_FEW_MATRIX_ROWS", 0)
    monkeypatch.setattr(row_kernels, "_convolution", lambda layer, inputs: "the same for every shape")

    assert_held(load(checkpoint), rows_each=2)


@pytest.mark.parametrize("rows_each", [1, 2])
def test_more_threads_keep_the_bits(model: DiffusionModel, rows_each: int, two_threads: None) -> None:
    assert_held(model, rows_each)


def test_some_images_of_a_batch_can_have_the_bits_that_they_have_alone(model: DiffusionModel) -> None:
    inputs = batch_of(model, 5)
    wanted = alone(model, inputs, 1)
    with torch.inference_mode():
        together = model.predict(replace(inputs, as_alone=AsAlone(1, (1, 4))))

    assert torch.equal(together[[1, 4]], wanted[[1, 4]])
    torch.testing.assert_close(together, wanted, rtol=0, atol=1e-5)


def test_the_first_pass_of_a_shape_has_the_bits_of_every_later_one(checkpoint: Path) -> None:
    """That includes images that need not equal their run alone."""
    model = load(checkpoint)
    inputs = replace(batch_of(model, 6), as_alone=AsAlone(1, (1, 4)))
    with torch.inference_mode():
        first, second = model.predict(inputs), model.predict(inputs)

    assert torch.equal(first, second)


def test_adapters_work_in_layers_that_run_image_by_image(model: DiffusionModel) -> None:
    layer = model.denoiser.get_submodule("time_embedding.linear_2")
    assert isinstance(layer, torch.nn.Linear)
    down, up = torch.randn(3, 2, layer.in_features), torch.randn(3, layer.out_features, 2)
    up[1:] = 0.0
    adapters = PerSampleAdapters({"time_embedding.linear_2": LowRankUpdate(down, up)})
    inputs = replace(batch_of(model, 3), as_alone=AsAlone(1, (0, 1, 2)))
    with torch.inference_mode():
        plain = model.predict(inputs)
        adapted = model.predict(replace(inputs, adapters=adapters))

    assert not torch.equal(adapted[0], plain[0])
    assert torch.equal(adapted[1:], plain[1:])


def test_a_pass_leaves_the_network_as_it_was(model: DiffusionModel) -> None:
    inputs = batch_of(model, 4)
    layers = [layer for layer in model.denoiser.modules() if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)]
    before = [layer.__dict__.get("forward") for layer in layers]
    broken = replace(inputs, timesteps=torch.zeros(3), as_alone=AsAlone(2, (0, 1)))
    with torch.inference_mode():
        model.predict(replace(inputs, as_alone=AsAlone(2, (0, 1))))
        with pytest.raises(RuntimeError):
            model.predict(broken)

    assert [layer.__dict__.get("forward") for layer in layers] == before


def test_a_pass_that_failed_does_not_settle_which_layers_matter(model: DiffusionModel) -> None:
    inputs = batch_of(model, 6)
    wanted = alone(model, inputs, 2)
    held = replace(inputs, as_alone=AsAlone(2, (0, 1, 2)))
    with torch.inference_mode():
        with pytest.raises(RuntimeError):
            model.predict(replace(held, timesteps=torch.zeros(5)))
        together = model.predict(held)

    assert torch.equal(together, wanted)


@torch.inference_mode()
def test_layers_that_an_earlier_pass_did_not_need_keep_the_bits(checkpoint: Path) -> None:
    model = load(checkpoint)
    inputs = batch_of(model, 6)
    wanted = alone(model, inputs, 2)
    held = replace(inputs, as_alone=AsAlone(2, (0, 1, 2)))
    terms = [model.time_terms(float(inputs.timesteps[row]), 1) for row in range(6)]
    model.predict(replace(held, time_terms=torch.cat([term for term in terms if term is not None])))

    together = model.predict(held)

    assert torch.equal(together, wanted)
