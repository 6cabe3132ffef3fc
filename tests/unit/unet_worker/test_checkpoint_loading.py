"""How a worker runs the forward pass of what it loaded."""

import logging
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser
from pentimento.diffusion.families import DiffusionModel
from pentimento.domain.errors import FailedPrecondition
from services.unet_worker.models import checkpoint_loading
from services.unet_worker.models.checkpoint_loading import denoiser_for, load_checkpoint
from tests.support.logged import said_by


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
    return load_checkpoint(checkpoint, DeviceChoice.CPU, DtypeChoice.AUTO)


def test_load_checkpoint_beyond_budget_names_sizes_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    monkeypatch.setattr(checkpoint_loading, "load_model", lambda *_: pytest.fail("it was loaded"))

    with pytest.raises(FailedPrecondition, match=r"tiny needs .* GB for its weights.*memory_budget_mib") as refused:
        load_checkpoint(checkpoint, DeviceChoice.CPU, DtypeChoice.AUTO, budget_bytes=1000)

    assert refused.value.reason == "DEVICE_MEMORY_SHORT"


def test_without_a_gpu_captured_passes_run_eagerly_and_the_log_has_the_reason(
    model: DiffusionModel, caplog: pytest.LogCaptureFixture
) -> None:
    assert model.device == torch.device("cpu")

    with caplog.at_level(logging.WARNING):
        denoiser = denoiser_for(model, CompileMode.CAPTURE)

    assert isinstance(denoiser, Denoiser)
    assert [getattr(record, "reason", "") for record in said_by(checkpoint_loading.__name__, caplog)] == ["NO_CUDA"]


@pytest.mark.slow
def test_compiled_passes_need_no_gpu(model: DiffusionModel) -> None:
    assert isinstance(denoiser_for(model, CompileMode.COMPILE), CompiledDenoiser)
    assert isinstance(denoiser_for(model, CompileMode.OFF), Denoiser)
