"""One small encoder for all tests of the embedder."""

from pathlib import Path

import pytest

from services.embedder.model import EmbeddingModel, open_model
from tests.support.encoders import write_encoder


@pytest.fixture(scope="session")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def model(encoder_directory: Path) -> EmbeddingModel:
    return open_model(encoder_directory)
