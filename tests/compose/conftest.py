from pathlib import Path

import pytest

from deploy.make_secrets import main as make_secrets


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    make_secrets(tmp_path)
    return tmp_path
