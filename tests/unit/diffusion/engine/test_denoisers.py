"""Compiled and recorded passes: which shapes they serve, which buffers they read, and the same images.

A recording here runs the function again and writes over the first outputs, as a CUDA graph does; only the recording
itself needs a GPU.
"""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pentimento.devices.choices import CompileMode
from pentimento.diffusion.engine import CompiledDenoiser, batch_sizes_up_to, cuda_recorder, replaying
from pentimento.diffusion.engine.captured import ReplayedFunction
from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.families.row_updates import replaced
from pentimento.domain.errors import FailedPrecondition
from tests.support.logged import said_by
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_batches import assert_same_image, request
from tests.unit.diffusion.engine.test_seams import residuals

KEY = BatchKey(32, 32, guided=True)


class Rerun:
    """A recording that works on any device like a CUDA graph: same memory of inputs and outputs."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.outputs = function()
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        again = self._function()
        kept = (self.outputs,) if isinstance(self.outputs, Tensor) else self.outputs
        for output, new in zip(kept, (again,) if isinstance(again, Tensor) else again, strict=True):
            output.copy_(new)


class Recordings:
    """A factory that keeps its recordings."""

    def __init__(self) -> None:
        self.made: list[Rerun] = []

    def __call__(self, function: Callable[[], Any]) -> Rerun:
        self.made.append(Rerun(function))
        return self.made[-1]


@pytest.fixture
def recordings() -> Recordings:
    return Recordings()


def captured(model: DiffusionModel, recordings: Recordings, sizes: tuple[int, ...]) -> CompiledDenoiser:
    denoiser = CompiledDenoiser(model, CompileMode.CAPTURE, replaying(recordings), halves=True)
    with torch.inference_mode():
        denoiser.warm(KEY, sizes)
    return denoiser


def test_replay_reads_and_writes_buffers_of_its_shapes(recordings: Recordings) -> None:
    read: list[tuple[int, ...]] = []

    def function(left: Tensor, nested: tuple[Tensor, Tensor | None]) -> Tensor:
        read.append((left.data_ptr(), nested[0].data_ptr()))
        return left + nested[0]

    replayed = ReplayedFunction(function, recordings)
    first = replayed(torch.ones(2, 3), (torch.ones(2, 3), None))
    assert torch.equal(first, torch.full((2, 3), 2.0))
    second = replayed(torch.full((2, 3), 5.0), (torch.arange(6.0).view(3, 2).t(), None))
    other = replayed(torch.ones(4, 3), (torch.ones(4, 3), None))

    assert second is first and torch.equal(first, 5 + torch.tensor([[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]))
    assert other.shape == (4, 3)
    assert len(recordings.made) == 2
    # Recorded once and replayed twice over the same memory; another shape has other memory.
    assert len(set(read[:3])) == 1 and read[3] == read[4] != read[0]


def test_replay_does_not_read_caller_tensors_again(recordings: Recordings) -> None:
    replayed = ReplayedFunction(lambda values: values * 2, recordings)
    given = torch.ones(3)

    result = replayed(given)
    given.fill_(7)
    recordings.made[0].replay()

    assert torch.equal(result, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((torch.ones(2), None), (torch.ones(2), torch.ones(2))),
        ((torch.ones(2), torch.ones(2)), (torch.ones(2, dtype=torch.float64), torch.ones(2))),
        (((torch.ones(2), torch.ones(2)), torch.ones(2)), ((torch.ones(2),), torch.ones(2))),
    ],
    ids=["a part is missing", "another type", "another number"],
)
def test_arguments_of_other_kind_are_recorded_separately(recordings: Recordings, first: Any, second: Any) -> None:
    replayed = ReplayedFunction(lambda left, right: left[0] * 1, recordings)

    for arguments in (first, second, first):
        replayed(*arguments)

    assert len(recordings.made) == 2


def test_first_two_calls_are_not_recorded(recordings: Recordings) -> None:
    replayed = ReplayedFunction(lambda values: values * 2, recordings, after=2)

    made = []
    for _ in range(4):
        assert torch.equal(replayed(torch.ones(3)), torch.full((3,), 2.0))
        made.append(len(recordings.made))

    assert made == [0, 0, 1, 1]
    assert recordings.made[0].replays == 2


def test_the_recording_that_was_called_longest_ago_is_forgotten(recordings: Recordings) -> None:
    replayed = ReplayedFunction(lambda values: values * 2, recordings, kept=2)

    for size in (1, 2, 1, 3, 1, 2):
        replayed(torch.ones(size))

    # The third size pushes the second out, which is then recorded again.
    assert [len(one.outputs) for one in recordings.made] == [1, 2, 3, 2]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "NO_MEMORY"),
        (RuntimeError("operation not permitted when stream is capturing"), "NOT_RECORDED"),
    ],
)
def test_function_that_cannot_be_recorded_runs_plain(
    error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def refuse(function: Callable[[], Any]) -> Rerun:
        asked.append(function)
        raise error

    doubled = ReplayedFunction(lambda values: values * 2, refuse)

    assert [doubled(torch.full((1,), value)).item() for value in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert len(asked) == 1
    logged = said_by("pentimento.diffusion.engine.captured", caplog)
    assert [getattr(record, "reason", "") for record in logged] == [reason]


@torch.inference_mode()
def test_repeated_batch_of_other_size_is_recorded_with_halves(model: DiffusionModel, recordings: Recordings) -> None:
    denoiser = captured(model, recordings, (1,))
    inputs = example_input(model, BatchKey(48, 32, guided=True), 4)
    whole = model.predict(inputs)
    residuals = model.example_residuals(model.encode(inputs))

    for _ in range(3):
        assert torch.equal(denoiser.predict(inputs), whole)
    assert len(recordings.made) == 1 + 1
    for _ in range(3):
        assert torch.equal(denoiser.predict(replace(inputs, residuals=residuals)), whole)
    assert len(recordings.made) == 2 + 2


@torch.inference_mode()
def test_recordings_are_released_when_memory_is_short(model: DiffusionModel, recordings: Recordings) -> None:
    denoiser, inputs = captured(model, recordings, (1,)), example_input(model, KEY, 2)
    recording = weakref.ref(recordings.made.pop())

    denoiser.release_memory()

    assert recording() is None
    assert torch.equal(denoiser.predict(inputs), model.predict(inputs))
    assert recordings.made == []


@torch.inference_mode()
def test_the_pass_and_both_its_halves_are_recorded_for_each_batch_size(
    model: DiffusionModel, recordings: Recordings
) -> None:
    denoiser = captured(model, recordings, (1, 3))
    assert len(recordings.made) == 2
    for rows in (2, 6):
        inputs = example_input(model, KEY, rows)
        for _ in range(2):
            zeros = model.example_residuals(denoiser.encode(inputs))
            denoiser.predict(replace(inputs, residuals=zeros))
    assert len(recordings.made) == 2 * 3
    before = [one.replays for one in recordings.made]

    shifted = replace(inputs, latents=inputs.latents * 0.5)
    encoding = denoiser.encode(inputs)
    other = denoiser.encode(shifted)
    found = model.example_residuals(encoding)
    assert found is not None
    residuals = replace(
        found,
        down_block_residuals=tuple(torch.full_like(part, 0.1) for part in found.down_block_residuals),
        mid_block_residual=torch.full_like(encoding.tensors[0], -0.1),
    )
    controlled = replace(inputs, residuals=residuals)
    late = denoiser.decode(controlled, encoding)
    whole = denoiser.predict(shifted)

    assert len(recordings.made) == 6
    whole_of_six, encoder, decoder = 1, 4, 5
    replays = [one.replays - earlier for one, earlier in zip(recordings.made, before, strict=True)]
    assert (replays[whole_of_six], replays[encoder], replays[decoder], sum(replays)) == (1, 2, 1, 4)
    # The first encoding outlived the second: it was not left in the graph's own memory.
    assert torch.equal(late, model.predict(controlled))
    assert torch.equal(other.tensors[0], model.encode(shifted).tensors[0])
    assert torch.equal(whole, model.predict(shifted))


@torch.inference_mode()
def test_a_patched_weight_is_seen_by_a_recording(model: DiffusionModel, recordings: Recordings) -> None:
    denoiser, inputs = captured(model, recordings, (1,)), example_input(model, KEY, 2)
    weight = model.denoiser.get_parameter("conv_out.weight").detach()
    before = weight.clone()

    plain = denoiser.predict(inputs)
    weight.mul_(2)
    try:
        patched, wanted = denoiser.predict(inputs), model.predict(inputs)
    finally:
        weight.copy_(before)

    assert torch.equal(patched, wanted) and not torch.equal(patched, plain)


@pytest.mark.parametrize("recorded", [True, False])
def test_images_in_padded_batches_equal_single_runs(
    model: DiffusionModel, recordings: Recordings, denoiser: CompiledDenoiser, recorded: bool
) -> None:
    loop = Loop(model, denoiser=captured(model, recordings, (1, 3)) if recorded else denoiser)
    added = [loop.add(request(seed)) for seed in range(2)]

    loop.run()

    assert [(report.request_count, report.row_count) for report in loop.observer.batches] == [(2, 6)] * 6
    for one in added:
        assert_same_image(model, one)
    assert len(recordings.made) == (2 if recorded else 0)


def test_a_cpu_has_no_graphs_and_says_so() -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        cuda_recorder(torch.device("cpu"))

    assert refusal.value.reason == "NO_CUDA"


@pytest.mark.parametrize("loaded", ["model", "xl_model", "flow_model"])
@torch.inference_mode()
def test_prompts_are_encoded_by_a_recording_to_the_same_bits(
    loaded: str, recordings: Recordings, request: pytest.FixtureRequest
) -> None:
    found: DiffusionModel = request.getfixturevalue(loaded)
    prompts = [f"a red circle, number {number}" for number in range(6)]
    plain = [found.encode_prompt(prompt).conditioning for prompt in prompts]

    found.record_texts(replaying(recordings))
    try:
        texts = [found.encode_prompt(prompt).conditioning for prompt in prompts]
    finally:
        found.record_texts(lambda function: function)

    assert len(recordings.made) == (1 if loaded == "model" else 2)
    assert all(made.replays == 4 for made in recordings.made)
    for one, other in zip(texts, plain, strict=True):
        assert torch.equal(one.states, other.states)
        assert one.pooled is other.pooled is None or torch.equal(one.pooled, other.pooled)  # type: ignore[arg-type]


@torch.inference_mode()
def test_text_encoders_with_a_lora_run_as_they_are(model: DiffusionModel, recordings: Recordings) -> None:
    encoder = model.adaptable["text_encoder"]
    model.record_texts(replaying(recordings))
    try:
        plain = [model.encode_prompt("a ring").conditioning.states for _ in range(4)][-1]
        with replaced([encoder.get_submodule("encoder.layers.0.mlp.fc1")], lambda layer, own, inputs: own(inputs) + 1):
            changed = model.encode_prompt("a ring").conditioning.states
        after = model.encode_prompt("a ring").conditioning.states
    finally:
        model.record_texts(lambda function: function)

    assert torch.equal(after, plain)
    assert not torch.allclose(changed, plain, atol=1e-3)
    assert [made.replays for made in recordings.made] == [3]  # a graph would compute as if there were none


@pytest.fixture
def denoiser(model: DiffusionModel) -> CompiledDenoiser:
    """Return a compiled denoiser without the compiler, which takes a minute."""
    made = CompiledDenoiser(model, CompileMode.COMPILE, compiler=lambda forward, **options: forward)
    with torch.inference_mode():
        made.warm(KEY, (1, 3))
    return made


def test_padded_is_the_next_warm_size(denoiser: CompiledDenoiser) -> None:
    assert [denoiser.padded(KEY, count) for count in (1, 2, 3, 4)] == [1, 3, 3, 4]
    assert denoiser.padded(replace(KEY, guided=False), 2) == 2


def test_predict_of_cold_shape_runs_without_compiler(model: DiffusionModel, denoiser: CompiledDenoiser) -> None:
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
def test_forward_pass_is_traced_as_one_graph(model: DiffusionModel) -> None:
    def trace(forward: Any, **options: Any) -> Any:
        return torch.compile(forward, dynamic=options["dynamic"], backend="eager", fullgraph=True)

    denoiser = CompiledDenoiser(model, CompileMode.COMPILE, compiler=trace)
    denoiser.warm(KEY, (1,))
    inputs = example_input(model, KEY, 2)

    torch.testing.assert_close(denoiser.predict(inputs), model.predict(inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_batch_sizes_double_up_to_the_largest(most: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes_up_to(most) == sizes


def test_passes_that_keep_and_reuse_features_are_recorded(model: DiffusionModel, recordings: Recordings) -> None:
    asked = replace(request(1, num_inference_steps=9), full_steps=(0, 2, 4, 6))
    eager, recorded = Loop(model), Loop(model, denoiser=captured(model, recordings, (1,)))
    made = len(recordings.made)

    found = [loop.add(asked) for loop in (eager, recorded)]
    for loop in (eager, recorded):
        loop.run()

    assert torch.equal(found[0].heard.latent, found[1].heard.latent)
    assert found[1].finished.reused_count == 5
    # A shape is recorded at its third run: four whole steps keep features, five reuse them.
    assert [one.replays for one in recordings.made[made:]] == [2, 3]
