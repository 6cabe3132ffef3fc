"""The exported zoo, of parts with a step of training each."""

from pathlib import Path

import pytest
import torch

from zoo.drawing.tokenizer import build_tokenizer
from zoo.export.models import export_all
from zoo.registry import MODELS
from zoo.train import discriminator


@pytest.fixture(scope="session")
def empty_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a work folder with a small tokenizer and no trained part."""
    folder = tmp_path_factory.mktemp("work")
    build_tokenizer(folder / "tokenizer", count=200, merges=50)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the exported zoo as training."""
    for item in items:
        if "exported" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.training)


@pytest.fixture(scope="session")
def exported(empty_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo") / "weights"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:  # the discriminator's images need not be good here
        for name in ("LIGHT_STEPS", "HEAVY_STEPS"):
            patch.setattr(discriminator, name, 1)
        names = export_all(empty_work, folder, untrained=True, told=lambda line: None)
    torch.set_num_threads(threads)
    assert names == list(MODELS)
    return folder
