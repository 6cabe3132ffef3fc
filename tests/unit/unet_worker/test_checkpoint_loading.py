"""Choose the forward pass of a loaded checkpoint."""

import logging
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice, TextEncoderPlace, WeightStorage
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.weight_memory import needed_bytes
from pentimento.domain.errors import FailedPrecondition
from services.unet_worker.models import checkpoint_loading
from services.unet_worker.models.checkpoint_loading import denoiser_for, fitted, load_checkpoint
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


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a checkpoint, and a budget that its text encoder exceeds by a byte."""
    directory = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tight")
    return directory, needed_bytes(check_checkpoint(directory), torch.float32) - 1


@pytest.mark.parametrize(
    ("asked", "device", "place"),
    [
        (TextEncoderPlace.HOST, "cuda", TextEncoderPlace.HOST),
        (TextEncoderPlace.AUTO, "cuda", TextEncoderPlace.HOST),
        (TextEncoderPlace.HOST, "cpu", TextEncoderPlace.HOST),
        (TextEncoderPlace.DEVICE, "cuda", None),
        (TextEncoderPlace.AUTO, "cpu", None),
    ],
)
def test_fitted_model_has_text_encoders_in_host_memory(
    tight: tuple[Path, int], asked: TextEncoderPlace, device: str, place: TextEncoderPlace | None
) -> None:
    directory, budget = tight

    found, short = fitted(directory, torch.device(device), torch.float32, WeightStorage.FULL, asked, budget)

    assert (found if short is None else None) is place


def test_auto_moves_no_text_encoder_of_a_model_that_fits(tight: tuple[Path, int]) -> None:
    directory, budget = tight
    asked = (torch.device("cuda"), torch.float32, WeightStorage.FULL, TextEncoderPlace.AUTO)

    assert fitted(directory, *asked, budget + 1) == (TextEncoderPlace.DEVICE, None)


def test_load_checkpoint_moves_text_encoder_or_rejects_model(tight: tuple[Path, int]) -> None:
    directory, budget = tight

    def load(place: TextEncoderPlace) -> DiffusionModel:
        return load_checkpoint(
            directory, DeviceChoice.CPU, DtypeChoice.FLOAT32, budget_bytes=budget, text_encoders=place
        )

    moved = {one.component for one in load(TextEncoderPlace.HOST).weights if one.in_host_memory}
    with pytest.raises(FailedPrecondition, match=r"text_encoders=host, memory_budget_mib or another device") as refused:
        load(TextEncoderPlace.DEVICE)

    assert moved == {"text_encoder"}
    assert refused.value.reason == "DEVICE_MEMORY_SHORT"


def test_captured_passes_run_eagerly_with_log_without_gpu(
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
