import shutil
from pathlib import Path

import pytest

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from lab.fixtures.flow_checkpoints import (
    write_flux_2_checkpoint,
    write_flux_checkpoint,
    write_klein_checkpoint,
    write_qwen_image_checkpoint,
    write_z_image_checkpoint,
)
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from pentimento.diffusion.families import DiffusionModel
from tests.unit.diffusion.specs import load


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", prediction_type="v_prediction")


@pytest.fixture(scope="session")
def xl_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_xl_checkpoint(tmp_path_factory.mktemp("checkpoints") / "xl")


@pytest.fixture(scope="session")
def flow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flow_checkpoint(tmp_path_factory.mktemp("checkpoints") / "flow", max_sequence_length=3)


@pytest.fixture(scope="session")
def flux_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux_checkpoint(tmp_path_factory.mktemp("checkpoints") / "flux")


@pytest.fixture(scope="session")
def klein_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_klein_checkpoint(tmp_path_factory.mktemp("checkpoints") / "klein")


@pytest.fixture(scope="session")
def flux_2_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux_2_checkpoint(tmp_path_factory.mktemp("checkpoints") / "flux_2")


@pytest.fixture(scope="session")
def z_image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_z_image_checkpoint(tmp_path_factory.mktemp("checkpoints") / "z_image")


@pytest.fixture(scope="session")
def sana_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sana_checkpoint(tmp_path_factory.mktemp("checkpoints") / "sana")


@pytest.fixture(scope="session")
def qwen_image_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_image_checkpoint(tmp_path_factory.mktemp("checkpoints") / "qwen_image")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint, tmp_path / "model")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> DiffusionModel:
    return load(checkpoint)


@pytest.fixture(scope="session")
def xl_model(xl_checkpoint: Path) -> DiffusionModel:
    return load(xl_checkpoint)


@pytest.fixture(scope="session")
def flow_model(flow_checkpoint: Path) -> DiffusionModel:
    return load(flow_checkpoint)


@pytest.fixture(scope="session")
def flux_model(flux_checkpoint: Path) -> DiffusionModel:
    return load(flux_checkpoint)


@pytest.fixture(params=["model", "xl_model", "flow_model", "flux_model"])
def any_model(request: pytest.FixtureRequest) -> DiffusionModel:
    """Return each family once."""
    found: DiffusionModel = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["model", "xl_model", "flow_model"])
def split_model(request: pytest.FixtureRequest) -> DiffusionModel:
    """Return each family with passes in parts once."""
    found: DiffusionModel = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["model", "xl_model"])
def unet_model(request: pytest.FixtureRequest) -> DiffusionModel:
    """Return each family with a U-Net once."""
    found: DiffusionModel = request.getfixturevalue(request.param)
    return found
