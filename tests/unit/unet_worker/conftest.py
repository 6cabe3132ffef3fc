import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.diffusion.families import DiffusionModel, load_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    folder = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", prediction_type="v_prediction")
    return load_model(folder, torch.device("cpu"), torch.float32)
