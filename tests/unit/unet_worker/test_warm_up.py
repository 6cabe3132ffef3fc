"""Before serving: the memory that batches need is measured, and a worker that cannot hold one picture says so."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pentimento.diffusion.engine import BatchLimits, CompiledDenoiser, CompileMode, EagerDenoiser, MemoryModel
from pentimento.diffusion.families import BatchKey, DiffusionModel, load_model
from pentimento.domain.errors import InvalidArgument
from services.unet_worker import device, warm_up
from services.unet_worker.device import memory_budget_bytes
from services.unet_worker.warm_up import prepare_denoiser
from tests.checkpoints import write_checkpoint

KEY = BatchKey(32, 32, guided=True)
CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    return load_model(write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny"), CPU, torch.float32)


@pytest.fixture
def limits() -> BatchLimits:
    return BatchLimits(4, None, lambda: 0.0)


@torch.inference_mode()
def test_with_memory_to_spare_the_largest_batch_is_the_one_that_is_set(
    model: DiffusionModel, limits: BatchLimits
) -> None:
    prepare_denoiser(model, EagerDenoiser(model), limits, KEY, 64 * GIB)

    assert limits.limit(KEY) == 4


@torch.inference_mode()
def test_a_budget_that_holds_no_picture_stops_the_start_and_is_named(
    model: DiffusionModel, limits: BatchLimits
) -> None:
    with pytest.raises(InvalidArgument, match="memory budget of 1 MiB"):
        prepare_denoiser(model, EagerDenoiser(model), limits, KEY, 2**20)


@torch.inference_mode()
def test_where_memory_cannot_be_measured_the_set_batch_is_the_bound(
    model: DiffusionModel, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "measure_memory", lambda *given: None)

    prepare_denoiser(model, EagerDenoiser(model), limits, KEY, 1)

    assert limits.limit(KEY) == 4


@torch.inference_mode()
def test_only_batches_that_fit_are_compiled(
    model: DiffusionModel, limits: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row of a picture takes a MiB, three requests of two rows fit six of them.
    monkeypatch.setattr(warm_up, "measure_memory", lambda *given: MemoryModel(0.0, 2**20 / 32**2))
    denoiser = CompiledDenoiser(model, CompileMode.COMPILE, compiler=lambda forward, **options: forward)

    prepare_denoiser(model, denoiser, limits, KEY, 7 * 2**20)

    assert limits.limit(KEY) == 3
    assert [denoiser.padded(KEY, count) for count in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert denoiser.sizes(KEY) == (1, 2, 3)


def test_a_budget_that_is_set_is_taken_as_it_is() -> None:
    assert memory_budget_bytes(CPU, 512) == 512 * 2**20


@pytest.mark.parametrize(("granted", "bytes_"), [("1000000\n", 900_000), ("max\n", None)])
def test_a_process_on_the_cpu_keeps_to_what_its_control_group_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: str, bytes_: Any
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(granted)
    monkeypatch.setattr(device, "CONTROL_GROUP_LIMIT", limit)
    whole = int(device.device_memory(CPU).total_bytes * 0.9)

    assert memory_budget_bytes(CPU, 0) == (whole if bytes_ is None else bytes_)
