from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_controlnet, write_flow_controlnet
from pentimento.diffusion.controlnets import ControlNet, load_controlnet


@pytest.fixture(scope="session")
def controlnet_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_controlnet(tmp_path_factory.mktemp("controlnets") / "edges")


@pytest.fixture(scope="session")
def controlnet(controlnet_directory: Path) -> ControlNet:
    return load_controlnet(controlnet_directory, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def flow_controlnet_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flow_controlnet(tmp_path_factory.mktemp("controlnets") / "flow")


@pytest.fixture(scope="session")
def flow_controlnet(flow_controlnet_directory: Path) -> ControlNet:
    return load_controlnet(flow_controlnet_directory, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def union_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_controlnet(tmp_path_factory.mktemp("controlnets") / "union", xl=True, union=True)
