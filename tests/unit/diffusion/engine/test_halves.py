"""The first half of a step runs while residuals are on their way, and the image has the same bits as with residuals on
time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pentimento.devices.choices import CompileMode
from pentimento.diffusion.denoising import DenoisingRequest
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import (
    NO_CONTROL,
    BatchKey,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    DiffusionModel,
)
from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_batches import TOLERANCE, request
from tests.unit.diffusion.engine.test_seams import Source, residuals
from tests.unit.diffusion.specs import denoise, denoise_controlled


class Halves(Denoiser):
    """Run the model's own halves, and record each half with its number of rows."""

    def __init__(self, model: DiffusionModel, after_encode: Callable[[], None] = lambda: None) -> None:
        super().__init__(model)
        self.calls: list[tuple[str, int]] = []
        self.after_encode = after_encode

    def predict(self, inputs: DenoiserInput) -> Tensor:
        self.calls.append(("whole", len(inputs.latents)))
        return super().predict(inputs)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        assert inputs.residuals is None
        self.calls.append(("encode", len(inputs.latents)))
        encoding = super().encode(inputs)
        self.after_encode()
        return encoding

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        self.calls.append((f"to {blocks_done}", len(inputs.latents)))
        return super().advance(inputs, encoding, blocks_done)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        self.calls.append(("decode", len(inputs.latents)))
        return super().decode(inputs, encoding)


def residuals_for(model: DiffusionModel, inputs: DenoiserInput, seed: int) -> ControlResiduals:
    """Return random residuals of the shapes of the family; of one block for a transformer."""
    encoding = model.encode(inputs)
    generator = torch.Generator().manual_seed(seed)
    zeros = model.example_residuals(encoding)
    if zeros is None:
        return ControlResiduals(block_residuals=(torch.randn(encoding.tensors[0].shape, generator=generator),))
    down = tuple(torch.randn(part.shape, generator=generator) for part in zeros.down_block_residuals)
    assert zeros.mid_block_residual is not None
    return ControlResiduals(down, torch.randn(zeros.mid_block_residual.shape, generator=generator))


@torch.inference_mode()
@pytest.mark.parametrize("controlled", [False, True])
def test_the_halves_give_the_bits_of_the_whole_pass(split_model: DiffusionModel, controlled: bool) -> None:
    inputs = example_input(split_model, BatchKey(32, 32, guided=True), 2)
    if controlled:
        inputs = replace(inputs, residuals=residuals_for(split_model, inputs, seed=1))

    encoding = split_model.encode(replace(inputs, residuals=None))

    assert encoding.tensors
    assert torch.equal(split_model.decode(inputs, encoding), split_model.predict(inputs))


@torch.inference_mode()
def test_rows_encoded_apart_are_decoded_together(split_model: DiffusionModel) -> None:
    inputs = example_input(split_model, BatchKey(32, 32, guided=True), 4)
    encoding = split_model.encode(inputs)

    apart = [encoding.rows(0, 2), encoding.rows(2, 4)]
    together = DenoiserEncoding.concatenate(apart, row_count=4)
    padded = DenoiserEncoding.concatenate(apart[:1], row_count=4)

    assert torch.equal(split_model.decode(inputs, together), split_model.decode(inputs, encoding))
    assert all(len(tensor) == 4 and not tensor[2:].any() for tensor in padded.tensors)


@torch.inference_mode()
@pytest.mark.parametrize("other", [(), (torch.ones(1, 2), torch.ones(1, 2))], ids=["none", "one more"])
def test_rows_with_different_halves_take_whole_pass(other: tuple[Tensor, ...]) -> None:
    one = DenoiserEncoding((torch.ones(1, 2),))

    for parts in ([one, DenoiserEncoding(other)], [DenoiserEncoding(other), one]):
        assert DenoiserEncoding.concatenate(parts, row_count=2) == DenoiserEncoding()


@torch.inference_mode()
def test_a_network_that_the_passes_do_not_know_runs_whole(model: DiffusionModel) -> None:
    inputs = example_input(model, BatchKey(32, 32, guided=True), 2)
    inputs = replace(inputs, residuals=residuals_for(model, inputs, seed=1))
    by_halves = model.predict(inputs)
    unet = cast(Any, model)
    passes, unet._passes = unet._passes, None
    try:
        encoding = model.encode(inputs)
        whole = model.decode(inputs, encoding)
    finally:
        unet._passes = passes

    assert encoding == DenoiserEncoding()
    assert torch.equal(whole, by_halves)


def controlled_request(source: Source, seed: int = 1, **changes: object) -> DenoisingRequest:
    return replace(request(seed, **changes), control=source)


class Uncontrolled(Source):
    def take(self, step_index: int) -> ControlResiduals | None:
        return NO_CONTROL


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        (Source(held=set(range(6))), [("encode", 2), ("decode", 2)]),
        (Source(), [("whole", 2)]),
        (Uncontrolled(), [("whole", 2)]),
    ],
    ids=["late", "at once", "no control"],
)
def test_late_residuals_split_the_pass_in_halves(
    model: DiffusionModel, source: Source, calls: list[tuple[str, int]]
) -> None:
    denoiser = Halves(model, after_encode=source.held.clear)
    loop = Loop(model, denoiser=denoiser)
    added = loop.add(controlled_request(source))

    loop.tick()
    assert denoiser.calls == calls
    assert added.heard.steps == [1]
    loop.run()

    assert len(calls) == 2 or denoiser.calls == calls * 6
    asked = added.job.request
    free = isinstance(source, Uncontrolled)
    wanted = denoise(model, asked) if free else denoise_controlled(model, asked, residuals)
    assert torch.equal(added.heard.latent, wanted)


def test_the_first_half_of_a_late_request_is_not_run_again(model: DiffusionModel) -> None:
    source = Source(held={0})
    denoiser = Halves(model)
    loop = Loop(model, denoiser=denoiser)
    controlled = loop.add(controlled_request(source))
    plain = loop.add(request(2))

    loop.tick(2)
    source.held.clear()
    loop.tick()

    assert denoiser.calls == [("encode", 4), ("decode", 2), ("whole", 2), ("encode", 2), ("decode", 4)]
    loop.run()
    assert torch.equal(controlled.heard.latent, denoise_controlled(model, controlled.job.request, residuals))
    assert torch.equal(plain.heard.latent, denoise(model, plain.job.request))


def test_at_most_one_batch_waits_after_first_half(model: DiffusionModel) -> None:
    source = Source(held={0})
    denoiser = Halves(model)
    loop = Loop(model, denoiser=denoiser, max_batch=2)
    for seed in range(3):
        loop.add(controlled_request(source, seed))

    loop.tick(4)

    assert denoiser.calls == [("encode", 4)]


def test_a_source_that_breaks_between_the_halves_ends_its_own_request(model: DiffusionModel) -> None:
    class Breaks(Source):
        def take(self, step_index: int) -> ControlResiduals | None:
            if denoiser.calls:
                raise Unavailable("CONTROLNET_LOST", "no replica answers")
            return None

    denoiser = Halves(model)
    loop = Loop(model, denoiser=denoiser)
    broken, plain = loop.add(controlled_request(Breaks())), loop.add(request(2))

    loop.run()

    assert isinstance(broken.heard.end, Unavailable)
    assert torch.equal(plain.heard.latent, denoise(model, plain.job.request))


def test_device_seconds_are_shared_by_requests_after_first_half(model: DiffusionModel) -> None:
    source = Source(held={0})

    def a_second_later() -> None:
        loop.now += 1.0

    loop = Loop(model, denoiser=Halves(model, after_encode=a_second_later))
    controlled, plain = loop.add(controlled_request(source)), loop.add(request(2))
    loop.tick()
    source.held.clear()
    loop.run()

    # Two ticks with a first half in them, each shared by both.
    assert [one.finished.device_s for one in (controlled, plain)] == [1.0, 1.0]


def test_seconds_behind_the_first_half_without_residuals_are_counted_by_step(model: DiffusionModel) -> None:
    source = Source(held={1, 3})
    loop = Loop(model)
    controlled, plain = loop.add(controlled_request(source)), loop.add(request(2))
    loop.tick(2)  # a step of both, then one of the plain request together with a first half

    loop.now += 2.0
    source.held.discard(1)
    loop.tick(2)  # steps 1 and 2
    loop.tick()
    loop.now += 0.5
    loop.tick()
    loop.now += 0.5
    source.held.clear()
    loop.run()

    assert controlled.finished.residual_waits_s == {1: 2.0, 3: 1.0}
    assert plain.finished.residual_waits_s == {}


@st.composite
def lateness(draw: st.DrawFn) -> list[tuple[DenoisingRequest, dict[int, int]]]:
    """Draw guided requests, some controlled, and how many ticks late the residuals of each step are."""
    ticks = st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=4)
    return [
        (
            request(
                seed,
                first_step=draw(st.sampled_from([0, 0, 2])),
                scheduler=draw(st.sampled_from([Scheduler.DDIM, Scheduler.EULER])),
            ),
            draw(ticks) if draw(st.booleans()) else {},
        )
        for seed in range(draw(st.integers(1, 4)))
    ]


@dataclass
class Slow(Source):
    """Late by ticks of the loop."""

    ticks_late: dict[int, int] = field(default_factory=dict)
    clock: Callable[[], float] = lambda: 0.0
    asked_at: dict[int, float] = field(default_factory=dict)

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        self.asked_at[step_index] = self.clock()

    def take(self, step_index: int) -> ControlResiduals | None:
        late = self.clock() < self.asked_at[step_index] + self.ticks_late.get(step_index, 0)
        return None if late else residuals(step_index)


@pytest.mark.slow
@given(asked=lateness())
@settings(max_examples=15, deadline=None)
def test_guided_image_with_late_residuals_keeps_its_bits(
    model: DiffusionModel, asked: list[tuple[DenoisingRequest, dict[int, int]]]
) -> None:
    loop = Loop(model, max_batch=3)
    added = []
    for one, late in asked:
        source = Slow(ticks_late=late, clock=loop.clock) if late else None
        added.append(loop.add(replace(one, control=source)))
    for _ in range(80):
        loop.tick()
        loop.now += 1.0

    for one in added:
        asked_for = one.job.request
        wanted = (
            denoise(model, asked_for) if asked_for.control is None else denoise_controlled(model, asked_for, residuals)
        )
        assert torch.equal(one.heard.latent, wanted)


@torch.inference_mode()
def test_compiled_halves_are_used_where_they_are_warm(model: DiffusionModel) -> None:
    compiled: list[str] = []

    def compiler(forward: Callable[..., object], **options: object) -> Callable[..., object]:
        def run(*parts: object) -> object:
            # The decoder is given the encoding first.
            compiled.append("decode" if isinstance(parts[0], tuple) else "encode")
            return forward(*parts)

        return run

    denoiser = CompiledDenoiser(model, CompileMode.COMPILE, compiler=compiler, halves=True)
    key = BatchKey(32, 32, guided=True)
    denoiser.warm(key, (1,))
    inputs = example_input(model, key, 2)
    controlled = replace(inputs, residuals=residuals_for(model, inputs, seed=1))
    cold = example_input(model, key, 4)
    compiled.clear()

    late = denoiser.decode(controlled, denoiser.encode(inputs))
    at_once = denoiser.predict(controlled)
    denoiser.decode(cold, denoiser.encode(cold))

    assert compiled == ["encode", "decode"] * 2
    assert torch.equal(late, model.predict(controlled))
    assert torch.equal(at_once, late)


@pytest.fixture(scope="module")
def traced(model: DiffusionModel) -> CompiledDenoiser:
    """Trace both halves as one graph each, for one and for three guided requests; a graph break is an error."""

    def trace(forward: Callable[..., object], **options: object) -> object:
        return torch.compile(forward, dynamic=False, backend="eager", fullgraph=True)

    denoiser = CompiledDenoiser(model, CompileMode.COMPILE, compiler=trace, halves=True)
    with torch.inference_mode():
        denoiser.warm(BatchKey(32, 32, guided=True), (1, 3))
    return denoiser


@pytest.mark.slow
@torch.inference_mode()
def test_the_halves_can_be_traced_as_one_graph_each(model: DiffusionModel, traced: CompiledDenoiser) -> None:
    inputs = example_input(model, BatchKey(32, 32, guided=True), 2)
    controlled = replace(inputs, residuals=residuals_for(model, inputs, seed=1))

    prediction = traced.decode(controlled, traced.encode(inputs))

    torch.testing.assert_close(prediction, model.predict(controlled), rtol=0, atol=1e-5)


def test_controlled_images_in_padded_compiled_batches_equal_single_runs(
    model: DiffusionModel, traced: CompiledDenoiser
) -> None:
    late = Source(held=set(range(6)))
    loop = Loop(model, denoiser=traced)
    added = [loop.add(controlled_request(late)), loop.add(controlled_request(Source(), seed=2))]

    loop.tick()  # the first half of one, the whole step of the other
    late.held.clear()
    loop.run()

    for one in added:
        wanted = denoise_controlled(model, one.job.request, residuals)
        torch.testing.assert_close(one.heard.latent, wanted, rtol=0, atol=TOLERANCE)
