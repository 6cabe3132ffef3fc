"""Measure the memory of batches before serving, and report if one image does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pentimento.devices.choices import CompileMode, DeviceMemory
from pentimento.diffusion import device
from pentimento.diffusion.device import free_host_bytes, memory_budget_bytes, sharers_budget
from pentimento.diffusion.engine import BatchLimits, CompiledDenoiser, Denoiser, MemoryModel, MemoryProbe, probe
from pentimento.diffusion.families import BatchKey, DenoiserInput, DiffusionModel
from pentimento.domain.errors import InvalidArgument
from services.unet_worker.models.loaded import BatchMeasurement
from tests.support.logged import said_by

KEY = BatchKey(32, 32, guided=True)
CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def limits() -> BatchLimits:
    return BatchLimits(4, None, lambda: 0.0)


class Watched(Denoiser):
    """The real model's forward pass, which takes `seconds` of `clock` for each of its rows."""

    def __init__(self, model: DiffusionModel, seconds: float = 0.0) -> None:
        super().__init__(model)
        self._seconds = seconds
        self.now = 0.0
        self.rows: list[int] = []

    def predict(self, inputs: DenoiserInput) -> torch.Tensor:
        prediction = super().predict(inputs)
        self.now += self._seconds * len(inputs.latents)
        self.rows.append(len(inputs.latents))
        return prediction

    def clock(self) -> float:
        return self.now


def measurement_of(
    model: DiffusionModel, denoiser: Watched, limits: BatchLimits, limit_s: float, budget: int = 64 * GIB
) -> BatchMeasurement:
    return BatchMeasurement(model, denoiser, limits, KEY, budget, limit_s, denoiser.clock)


@torch.inference_mode()
@pytest.mark.parametrize("measured", [True, False])
def test_batch_limit_is_the_set_one_with_memory_or_without_measurement(
    model: DiffusionModel, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    if not measured:
        monkeypatch.setattr(probe, "peak_bytes_of", lambda device, work: None)

    BatchMeasurement(model, Denoiser(model), limits, KEY, 64 * GIB if measured else 1).before_serving()

    assert limits.limit(KEY) == 4


@torch.inference_mode()
def test_a_budget_that_holds_no_image_stops_the_start_and_is_named(model: DiffusionModel, limits: BatchLimits) -> None:
    with pytest.raises(InvalidArgument, match="memory budget of 1 MiB"):
        BatchMeasurement(model, Denoiser(model), limits, KEY, 2**20).before_serving()


@torch.inference_mode()
@pytest.mark.parametrize(
    ("seconds", "limit_s", "rows", "taken_s"),
    [
        (7.0, 10.0, [2], 2 * 2 * 7.0),
        # One request: 2 passes of 2 rows, 4 s; two: 8 s; four would take 16 s more.
        (1.0, 12.0, [2, 4], 4.0 + 8.0),
    ],
)
def test_before_serving_measures_batches_as_far_as_time_goes(
    model: DiffusionModel, limits: BatchLimits, seconds: float, limit_s: float, rows: list[int], taken_s: float
) -> None:
    watched = Watched(model, seconds)

    measurement_of(model, watched, limits, limit_s).before_serving()

    assert sorted(set(watched.rows)) == rows
    assert watched.now == taken_s


@torch.inference_mode()
def test_remaining_batches_are_measured_in_idle_time(model: DiffusionModel, limits: BatchLimits) -> None:
    slow = Watched(model, seconds=7.0)
    measurement = measurement_of(model, slow, limits, limit_s=0.0)
    measurement.before_serving()

    left = measurement.when_idle(lambda: False)

    assert not left
    assert sorted(set(slow.rows)) == [2, 4, 8]
    assert limits.limit(KEY) == 4


@torch.inference_mode()
def test_limit_is_conservative_until_second_batch_is_measured(
    model: DiffusionModel, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10 MiB of weights and 1 MiB a row: four requests need 18 MiB. A batch of one shows 12 MiB, which may all be rows.
    denoiser = Watched(model)

    def peak_bytes_of(device: torch.device, work: Callable[[], object]) -> int:
        work()
        return 2**20 * (10 + denoiser.rows[-1])

    monkeypatch.setattr(MemoryProbe, "measure_decoder", lambda self: setattr(self, "_decoder_bytes_per_pixel", 0.0))
    monkeypatch.setattr(probe, "peak_bytes_of", peak_bytes_of)
    measurement = measurement_of(model, denoiser, limits, limit_s=-1.0, budget=25 * 2**20)
    measurement.before_serving()
    promised = limits.limit(KEY)

    measurement.when_idle(lambda: False)

    assert (promised, limits.limit(KEY)) == (2, 4)


@torch.inference_mode()
def test_request_interrupts_measurement_which_continues_later(model: DiffusionModel, limits: BatchLimits) -> None:
    watched = Watched(model)
    measurement = measurement_of(model, watched, limits, limit_s=-1.0)
    measurement.before_serving()
    looks = iter([False] * 50)

    # 50 operations are less than a forward pass: none was finished.
    assert measurement.when_idle(lambda: next(looks, True))
    assert set(watched.rows) == {2}

    assert not measurement.when_idle(lambda: False)
    assert sorted(set(watched.rows)) == [2, 4, 8]


@torch.inference_mode()
def test_a_measurement_may_be_interrupted_anywhere_inside_a_library_too(
    model: DiffusionModel, limits: BatchLimits
) -> None:
    """The tokenizer treats any exception of torch's as its own."""
    measurement = measurement_of(model, Watched(model), limits, limit_s=-1.0)
    measurement.before_serving()

    for look_count in range(50):
        looks = iter([False] * look_count)
        assert measurement.when_idle(lambda looks=looks: next(looks, True))  # type: ignore[misc]


@torch.inference_mode()
def test_measurement_is_logged_with_estimate(
    model: DiffusionModel, limits: BatchLimits, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="services.unet_worker.models.loaded")

    measurement_of(model, Watched(model, seconds=7.0), limits, limit_s=10.0).before_serving()

    assert [record.getMessage() for record in said_by("services.unet_worker.models.loaded", caplog)] == [
        "measuring a step of one image of 32x32",
        "a step of one image takes 14.0 s; serving in about 42 s",
        "a batch of 1 was measured in 28.0 s; at least batches of 4 fit",
        "batches of 2, 4 are measured while idle, in about 168 s",
    ]


@torch.inference_mode()
def test_step_time_is_that_of_the_second_pass(model: DiffusionModel, limits: BatchLimits) -> None:
    slow_at_first = Watched(model, seconds=7.0)
    measurement = measurement_of(model, slow_at_first, limits, limit_s=10.0)
    predict = slow_at_first.predict

    def first(inputs: DenoiserInput) -> torch.Tensor:
        slow_at_first.now += 100.0
        slow_at_first.predict = predict  # type: ignore[method-assign]
        return predict(inputs)

    slow_at_first.predict = first  # type: ignore[method-assign]
    measurement._probe._predict = lambda inputs: slow_at_first.predict(inputs)
    measurement.before_serving()

    assert measurement.step_s == 14.0
    measurement.when_idle(lambda: False)
    assert measurement.step_s == 14.0


WIDE = BatchKey(64, 32, guided=True)


# Steps of requests as (size, seconds, whether of one request), after 14 s were measured before serving.
@torch.inference_mode()
@pytest.mark.parametrize(
    ("steps", "step_s"),
    [
        pytest.param([(KEY, 2.0, True)] * 49, 14.0, id="too-few"),
        pytest.param([(KEY, 90.0, True)] * 24 + [(KEY, 2.0, True)] * 26, 2.0, id="median"),
        pytest.param([(KEY, 90.0, True)] * 99 + [(KEY, 3.0, True)] * 26, 3.0, id="newest-fifty"),
        pytest.param([(WIDE, 2.0, True)] * 50, 14.0, id="other-size"),
        pytest.param([(KEY, 20.0, False)] * 50, 14.0, id="slower-batch"),
        pytest.param([(KEY, 6.0, False)] * 50, 6.0, id="quicker-batch"),
    ],
)
def test_step_time_follows_newest_steps_of_requests(
    model: DiffusionModel, limits: BatchLimits, steps: list[tuple[BatchKey, float, bool]], step_s: float
) -> None:
    measurement = measurement_of(model, Watched(model, seconds=7.0), limits, limit_s=0.0)
    measurement.before_serving()

    for size, seconds, alone in steps:
        measurement.took_step(size, seconds, alone=alone)

    assert measurement.step_s == measurement.known.step_s == step_s


@torch.inference_mode()
def test_only_batches_that_fit_are_compiled(
    model: DiffusionModel, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row of an image takes a MiB: six rows of three requests fit.
    monkeypatch.setattr(MemoryProbe, "memory", lambda self: MemoryModel(0.0, 2**20 / 32**2))
    denoiser = CompiledDenoiser(model, CompileMode.COMPILE, compiler=lambda forward, **options: forward)

    BatchMeasurement(model, denoiser, limits, KEY, 7 * 2**20).before_serving()

    assert limits.limit(KEY) == 3
    assert [denoiser.padded(KEY, count) for count in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert denoiser.sizes(KEY) == (1, 2, 3)


@torch.inference_mode()
def test_measurement_continues_the_one_of_an_earlier_load(model: DiffusionModel, limits: BatchLimits) -> None:
    first = measurement_of(model, Watched(model, seconds=7.0), limits, limit_s=0.0)
    first.before_serving()
    again, new_limits = Watched(model), BatchLimits(4, None, lambda: 0.0)

    second = BatchMeasurement(model, again, new_limits, KEY, 64 * GIB, known=first.known)
    second.before_serving()

    assert (again.rows, second.step_s, new_limits.limit(KEY)) == ([], 14.0, limits.limit(KEY))
    assert not second.when_idle(lambda: False)
    assert sorted(set(again.rows)) == [4, 8]


@torch.inference_mode()
def test_another_models_weights_count_until_it_has_left(
    model: DiffusionModel, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 20 MiB of another model, 10 MiB of this one's, 1 MiB a row: with 36 MiB left one or two requests fit.
    denoiser, other = Watched(model), 20 * 2**20

    def peak_bytes_of(device: torch.device, work: Callable[[], object]) -> int:
        work()
        return other + 2**20 * (10 + denoiser.rows[-1])

    monkeypatch.setattr(MemoryProbe, "measure_decoder", lambda self: setattr(self, "_decoder_bytes_per_pixel", 0.0))
    monkeypatch.setattr(probe, "peak_bytes_of", peak_bytes_of)
    measurement = BatchMeasurement(model, denoiser, limits, KEY, 36 * 2**20, other_bytes=other)
    measurement.before_serving()
    beside, measured = limits.limit(KEY), max(denoiser.rows)
    measurement.share_device(0)

    assert (beside, measured) == (1, 2)
    # A batch of one proves 12 MiB a request.
    assert limits.limit(KEY) == 3
    other = 0
    assert not measurement.when_idle(lambda: False)
    assert limits.limit(KEY) == 4


@pytest.mark.parametrize(
    ("limit", "used", "cached", "free_bytes"),
    [
        # A twentieth stays free: of 20 GB, of the group's 4 GB.
        pytest.param("max", 0, 0, 7_000_000 * 1024, id="no group"),
        pytest.param("4096000000", 1_024_000_000, 0, 2_867_200_000, id="group"),
        pytest.param("4096000000", 2_048_000_000, 512_000_000, 2_355_200_000, id="cached files"),
        pytest.param("4096000000", 4_096_000_000, 0, 0, id="nothing left"),
    ],
)
def test_free_host_bytes_are_least_of_host_and_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: int, cached: int, free_bytes: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 20000000 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 0\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\nfile {cached}\n")
    monkeypatch.setattr(device, "CONTROL_GROUP_LIMIT", tmp_path / "memory.max")
    for name, file in (("_MEMORY", "meminfo"), ("_GROUP_USED", "memory.current"), ("_GROUP_STAT", "memory.stat")):
        monkeypatch.setattr(device, name, tmp_path / file)

    assert free_host_bytes() == free_bytes


@pytest.mark.parametrize(
    ("used", "own", "share", "sharers", "budget"),
    [
        (0, 0, 0.9, 1, 72),
        (0, 0, 0.9, 2, 36),
        (0, 0, 0.5, 4, 10),
        # Another process has most of the device.
        (60, 0, 0.9, 1, 20),
        (60, 0, 0.9, 4, 18),
        # This process may replace what it holds itself.
        (60, 50, 0.9, 1, 70),
        (80, 0, 0.9, 1, 0),
    ],
)
def test_budget_of_shared_gpu_is_at_most_what_others_leave(
    used: int, own: int, share: float, sharers: int, budget: int
) -> None:
    assert sharers_budget(DeviceMemory(used * 10**9, 80 * 10**9), own * 10**9, share, sharers) == budget * 10**9


def test_a_budget_that_is_set_is_taken_as_it_is() -> None:
    assert memory_budget_bytes(CPU, 512) == 512 * 2**20


@pytest.mark.parametrize(("granted", "bytes_"), [("1000000\n", 900_000), ("max\n", None)])
def test_cpu_process_keeps_limit_of_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: str, bytes_: Any
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(granted)
    monkeypatch.setattr(device, "CONTROL_GROUP_LIMIT", limit)
    whole = int(device.device_memory(CPU).total_bytes * 0.9)

    assert memory_budget_bytes(CPU, 0) == (whole if bytes_ is None else bytes_)
    assert memory_budget_bytes(CPU, 0, 2) == pytest.approx(memory_budget_bytes(CPU, 0) / 2, abs=1)
