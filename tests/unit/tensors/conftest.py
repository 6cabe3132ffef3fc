from pathlib import Path

import pytest

from pentimento.tensors.regions import RegionDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RegionDirectory:
    path = tmp_path / "shared"
    path.mkdir(mode=0o700)
    return RegionDirectory(path)
