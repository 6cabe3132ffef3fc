from pathlib import Path

import pytest
import torch

from pentimento.diffusion.families import DiffusionModel, load_model
from tests.checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", prediction_type="v_prediction")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> DiffusionModel:
    return load_model(checkpoint, torch.device("cpu"), torch.float32)
