"""Test inputs of single requests in a batch: residuals of ControlNets, on time and late, and LoRAs."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.denoising import prepare
from pentimento.diffusion.engine import EngineJob
from pentimento.diffusion.engine.rows import stack_residuals
from pentimento.diffusion.families import (
    ControlResiduals,
    DenoiserInput,
    DiffusionModel,
    LowRankUpdate,
    PerSampleAdapters,
)
from pentimento.diffusion.loras.patching import stack_adapters
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import Internal, Unavailable
from tests.unit.diffusion.engine.loops import Added, Listener, Loop
from tests.unit.diffusion.engine.test_batches import assert_same_image, request
from tests.unit.diffusion.specs import denoise_controlled

DOWN_SHAPES = ((16, 8, 8), (16, 8, 8), (16, 4, 4), (32, 4, 4))


def residuals(seed: int, rows: int = 2, value: float | None = None) -> ControlResiduals:
    generator = torch.Generator().manual_seed(seed)

    def made(shape: tuple[int, ...]) -> Tensor:
        if value is not None:
            return torch.full((rows, *shape), value)
        return torch.randn(rows, *shape, generator=generator)

    return ControlResiduals(tuple(made(shape) for shape in DOWN_SHAPES), made((32, 4, 4)))


@dataclass
class Source:
    """Random residuals for each step; steps in `held` are late until the test removes them."""

    held: set[int] = field(default_factory=set)
    asked: list[tuple[int, DenoiserInput]] = field(default_factory=list)

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        self.asked.append((step_index, inputs))

    def take(self, step_index: int) -> ControlResiduals | None:
        return None if step_index in self.held else residuals(step_index)


def assert_controlled(model: DiffusionModel, added: Added) -> None:
    wanted = denoise_controlled(model, request(1), residuals)
    torch.testing.assert_close(added.heard.latent, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("held", [set(), {0, 3}], ids=["on time", "late"])
def test_residuals_reach_their_own_request_alone(model: DiffusionModel, held: set[int]) -> None:
    loop, source = Loop(model), Source(held=set(held))
    controlled = loop.add(replace(request(1), control=source))
    plain = loop.add(request(2))

    loop.tick(2)
    assert (controlled.heard.steps, plain.heard.steps) == ([] if held else [1, 2], [1, 2])
    source.held.clear()
    loop.run()

    assert_controlled(model, controlled)
    assert_same_image(model, plain)
    assert [step for step, _ in source.asked] == [0, 1, 2, 3, 4, 5]
    assert source.asked[0][1].latents.shape == (2, 4, 8, 8)
    assert loop.observer.preemptions == []


def test_next_residuals_are_requested_before_listeners_receive_step(model: DiffusionModel) -> None:
    loop, source, asked = Loop(model), Source(), []
    controlled = loop.add(replace(request(1), control=source))
    controlled.heard.at_step[1] = lambda: asked.extend(step for step, _ in source.asked)

    loop.run()

    assert asked == [0, 1]


def test_late_residuals_of_all_requests_make_no_step(model: DiffusionModel) -> None:
    loop = Loop(model)
    loop.add(replace(request(1), control=Source(held={0})))

    assert loop.tick()  # prepared, and the first half run
    assert not loop.tick()
    assert loop.observer.sizes == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [(None, Unavailable), (residuals(0, rows=3), Internal), (residuals(0, value=float("nan")), Internal)],
    ids=["lost", "shape", "nan"],
)
def test_wrong_residuals_end_their_own_request(
    model: DiffusionModel, bad: ControlResiduals | None, error: type[Exception]
) -> None:
    class Wrong(Source):
        def take(self, step_index: int) -> ControlResiduals | None:
            if bad is None:
                raise Unavailable("CONTROLNET_LOST", "no replica answers")
            return bad

    loop = Loop(model)
    wrong = loop.add(replace(request(1), control=Wrong()))
    plain = loop.add(request(2))

    loop.run()

    assert isinstance(wrong.heard.end, error)
    assert_same_image(model, plain)


@pytest.mark.parametrize("first", [None, ControlResiduals()])
def test_stacked_residuals_are_zero_without_control_and_in_padding(first: ControlResiduals | None) -> None:
    own = residuals(1)

    stacked = stack_residuals([first, own], rows_each=2, row_count=6)

    assert stacked is not None and len(stacked.down_block_residuals) == len(DOWN_SHAPES)
    for rows, wanted in zip(stacked.tensors, own.tensors, strict=True):
        assert len(rows) == 6
        assert not rows[:2].any() and not rows[4:].any()
        assert torch.equal(rows[2:4], wanted)


def test_block_residuals_are_stacked_with_an_empty_one() -> None:
    ones = torch.ones(2, 16, 16)

    stacked = stack_residuals([ControlResiduals(), ControlResiduals(block_residuals=(ones, ones))], 2, 4)

    assert stacked is not None
    assert (stacked.down_block_residuals, stacked.mid_block_residual) == ((), None)
    assert [rows[2:].equal(ones) for rows in stacked.block_residuals] == [True, True]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        replace(residuals(2), mid_block_residual=None),
        replace(residuals(2), down_block_residuals=()),
        replace(residuals(2), down_block_residuals=residuals(2).down_block_residuals[:2]),
        ControlResiduals(block_residuals=(torch.ones(2, 16, 16),)),
    ],
    ids=["no mid", "no down", "fewer down", "of a transformer"],
)
def test_residuals_of_other_blocks_are_rejected_in_any_order(other: ControlResiduals, swapped: bool) -> None:
    parts = [other, residuals(1)] if swapped else [residuals(1), other]

    with pytest.raises(ValueError, match="blocks"):
        stack_residuals(parts, rows_each=2, row_count=4)


def test_batch_without_control_stacks_nothing() -> None:
    assert stack_residuals([None, ControlResiduals()], 2, 4) is None
    assert stack_residuals([None, None], 2, 4) is None
    assert stack_adapters([None, None], 2) is None


def update(rank: int, value: float) -> LowRankUpdate:
    return LowRankUpdate(torch.full((1, rank, 5), value), torch.full((1, 3, rank), value))


def test_adapters_of_different_ranks_and_layers_share_a_batch() -> None:
    first = PerSampleAdapters({"a": update(2, 1.0)})
    second = PerSampleAdapters({"a": update(4, 2.0), "b": update(1, 3.0)})

    stacked = stack_adapters([first, None, second], rows_each=2)

    assert stacked is not None
    applied = {name: part.up @ part.down for name, part in stacked.updates.items()}
    assert applied["a"].shape == (6, 3, 5)
    assert applied["a"][:, 0, 0].tolist() == [2.0, 2.0, 0.0, 0.0, 16.0, 16.0]
    assert applied["b"][:, 0, 0].tolist() == [9.0, 9.0]
    assert [stacked.updates[name].rows for name in ("a", "b")] == [slice(0, 6), slice(4, 6)]


def test_residuals_from_host_memory_go_to_the_models_device(model: DiffusionModel) -> None:
    """`meta` stands for a GPU: its tensors have a device and no values."""
    asked, gpu = replace(request(1), control=Source()), SimpleNamespace(device=torch.device("meta"))
    job = EngineJob(0, asked, model.info.batch_key(asked.spec), Listener())
    job.denoising = prepare(model, PromptMemo(model, 8), asked)
    job.ask_residuals(model)

    assert job.has_residuals(cast("DiffusionModel", gpu))

    assert job.residuals is not None
    assert [tensor.device.type for tensor in job.residuals.tensors] == ["meta"] * (len(DOWN_SHAPES) + 1)


def test_residuals_of_one_request_alone_are_not_copied() -> None:
    part = residuals(1)

    assert stack_residuals([part], rows_each=2, row_count=2) is part
    assert stack_residuals([part, None], 2, 4) is not part
    assert stack_residuals([part], 2, 4) is not part  # a padded batch has other rows
    with pytest.raises(ValueError, match="wanted 1 rows"):
        stack_residuals([part], rows_each=1, row_count=1)
