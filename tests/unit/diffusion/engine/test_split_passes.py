"""A transformer gets residuals of a ControlNet in parts: blocks run up to the last residual, and the image has the same
bits as with all residuals at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.fixtures.checkpoints import write_flow_checkpoint
from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import (
    BatchKey,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    DiffusionModel,
    load_model,
)
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_batches import request
from tests.unit.diffusion.engine.test_halves import Halves
from tests.unit.diffusion.specs import denoise, denoise_controlled

BLOCKS, RESIDUALS = 8, 4


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    """Return a model of eight blocks; its ControlNets have four."""
    path = write_flow_checkpoint(tmp_path_factory.mktemp("deep") / "deep", max_sequence_length=3, num_layers=BLOCKS)
    return load_model(path, torch.device("cpu"), torch.float32)


def residuals(step: int, there: int = RESIDUALS) -> ControlResiduals:
    generator = torch.Generator().manual_seed(step)
    made = tuple(torch.randn(2, 16, 16, generator=generator) for _ in range(RESIDUALS))
    return ControlResiduals(block_residuals=made[:there], awaited_count=RESIDUALS - there)


@dataclass
class Parts:
    """Give the first `there` residuals of each step, by default all; a step with 0 reports none."""

    there: dict[int, int] = field(default_factory=dict)
    asked: int = -1

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        self.asked = step_index

    def take(self, step_index: int) -> ControlResiduals | None:
        there = self.there.get(step_index, RESIDUALS)
        return residuals(step_index, there) if there else None


def controlled(source: object, seed: int = 1, **changes: object) -> DenoisingRequest:
    asked = request(seed, scheduler=Scheduler.FLOW_MATCH_EULER, **changes)
    return replace(asked, control=source)  # type: ignore[arg-type]


@torch.inference_mode()
@pytest.mark.parametrize("stops", [(), (2,), (3, 4), (2, 3, 4, 5, 6, 7)])
def test_parts_of_a_pass_give_the_bits_of_diffusers_whole_pass(deep: DiffusionModel, stops: tuple[int, ...]) -> None:
    inputs = example_input(deep, BatchKey(32, 32, guided=True), 2)
    encoding = deep.encode(inputs)
    for stop in stops:
        # The residuals that these blocks need: residual i // 2 after block i.
        there = residuals(0, (stop - 2) // 2 + 1)
        encoding = deep.advance(replace(inputs, residuals=there), encoding, stop)
        assert (encoding.blocks_done, encoding.block_count) == (stop, BLOCKS)

    whole = replace(inputs, residuals=residuals(0))
    assert torch.equal(deep.decode(whole, encoding), deep.predict(whole))


@pytest.mark.parametrize(
    ("blocks", "of_all", "reaches"),
    [
        (8, 4, [1, 3, 5, 7]),
        (24, 12, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23]),
        (6, 6, [1, 2, 3, 4, 5, 6]),
        (5, 3, [1, 3, 5]),
        (4, 8, [1, 2, 2, 3, 3, 4, 4, 4]),
    ],
)
def test_blocks_run_until_one_misses_a_residual(blocks: int, of_all: int, reaches: list[int]) -> None:
    encoding = DenoiserEncoding((torch.ones(1, 2),), 1, blocks)
    there = [
        ControlResiduals(block_residuals=(torch.ones(1),) * count, awaited_count=of_all - count)
        for count in range(of_all)
    ]

    assert [encoding.reach(one) for one in there] == reaches
    assert encoding.reach(ControlResiduals(block_residuals=(torch.ones(1),) * of_all)) == blocks
    assert encoding.reach(None) == 1


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ((0, 1, 1, 3, 4), ["encode", "to 3", "to 7", "decode"]),
        # The replica is gone after the first tick; another one begins the step again.
        ((2, 0, 1, 4), ["encode", "to 5", "decode"]),
        ((4,), ["whole"]),
    ],
    ids=["one after the other", "lost in between", "all at once"],
)
def test_blocks_run_once_as_their_residuals_come(
    deep: DiffusionModel, parts: tuple[int, ...], calls: list[str]
) -> None:
    source, denoiser = Parts(), Halves(deep)
    loop = Loop(deep, denoiser=denoiser)
    picture = loop.add(controlled(source))

    for there in parts:
        source.there[0] = there
        loop.tick()

    assert denoiser.calls == [(call, 2) for call in calls]
    assert picture.heard.steps == [1]
    loop.run()
    assert torch.equal(picture.heard.latent, denoise_controlled(deep, picture.job.request, residuals))


def test_residuals_that_come_while_blocks_run_are_used_in_the_same_tick(deep: DiffusionModel) -> None:
    source = Parts(there={0: 1})

    class Comes(Halves):
        def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
            source.there[0] += 1
            return super().advance(inputs, encoding, blocks_done)

    denoiser = Comes(deep)
    loop = Loop(deep, denoiser=denoiser)
    picture = loop.add(controlled(source))

    loop.tick()

    assert denoiser.calls == [("encode", 2), ("to 3", 2), ("to 5", 2), ("to 7", 2), ("decode", 2)]
    assert picture.heard.steps == [1]


def test_images_at_same_block_share_passes(deep: DiffusionModel) -> None:
    late, later = Parts(there={0: 2}), Parts(there={0: 1})
    denoiser = Halves(deep)
    loop = Loop(deep, denoiser=denoiser)
    first, second, plain = loop.add(controlled(late)), loop.add(controlled(later, 2)), loop.add(controlled(None, 3))

    loop.tick()

    # All begin; one stops behind block 3, one behind block 5; the request without a ControlNet finishes.
    assert denoiser.calls == [("encode", 6), ("to 3", 6), ("to 5", 4), ("decode", 2)]
    assert [one.heard.steps for one in (first, second, plain)] == [[], [], [1]]
    late.there[0] = later.there[0] = RESIDUALS
    denoiser.calls.clear()
    loop.tick()
    # The late requests share a pass with one that begins its next step.
    assert denoiser.calls == [("encode", 2), ("to 3", 2), ("to 5", 4), ("decode", 6)]


def test_seconds_between_parts_are_counted_to_their_step(deep: DiffusionModel) -> None:
    source = Parts(there={1: 0})
    loop = Loop(deep)
    picture = loop.add(controlled(source))
    for there in (0, 0, 1, 1, RESIDUALS):
        source.there[1] = there
        loop.tick()
        loop.now += 1.0
    loop.run()

    assert picture.finished.residual_waits_s == {1: 3.0}


@dataclass
class Slow(Parts):
    """Give one more part every `ticks_each` ticks of the loop after the request."""

    ticks_each: dict[int, int] = field(default_factory=dict)
    clock: Callable[[], float] = lambda: 0.0
    asked_at: float = 0.0

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        self.asked_at = self.clock()

    def take(self, step_index: int) -> ControlResiduals | None:
        each = self.ticks_each.get(step_index, 0)
        there = min(int((self.clock() - self.asked_at) / each), RESIDUALS) if each else RESIDUALS
        return residuals(step_index, there) if there else None


@st.composite
def lateness(draw: st.DrawFn) -> list[dict[int, int] | None]:
    """Draw guided images; a controlled one has the ticks per part, by step."""
    ticks = st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=4)
    return [draw(ticks) if draw(st.booleans()) else None for _ in range(draw(st.integers(1, 4)))]


@pytest.mark.slow
@given(asked=lateness())
@settings(max_examples=12, deadline=None)
def test_guided_image_with_any_parts_keeps_its_bits(deep: DiffusionModel, asked: list[dict[int, int] | None]) -> None:
    loop = Loop(deep, max_batch=3)
    added = []
    for seed, late in enumerate(asked):
        source = None if late is None else Slow(ticks_each=late, clock=loop.clock)
        added.append(loop.add(controlled(source, seed)))
    for _ in range(120):
        loop.tick()
        loop.now += 1.0

    for one in added:
        asked_for = one.job.request
        wanted = (
            denoise(deep, asked_for) if asked_for.control is None else denoise_controlled(deep, asked_for, residuals)
        )
        assert torch.equal(one.heard.latent, wanted)
