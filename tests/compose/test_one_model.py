"""Run docker-compose.embedded.yml with a models' folder of only one model."""

import json
import shutil
from pathlib import Path

import pytest

from tests.compose.composition import running
from tests.support.tiny_models import WEIGHTS

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


def test_models_folder_with_one_model_serves_it(tmp_path: Path) -> None:
    """No encoder, no registry, no ControlNets, no second model: each is skipped, with one line of its log."""
    shutil.copytree(WEIGHTS / "tiny-heavy", tmp_path / "models" / "mine")
    (tmp_path / "models").chmod(0o755)
    folder = {"PENTIMENTO_MODELS": str(tmp_path / "models"), "PENTIMENTO_HEAVY_MODEL": "mine"}
    skipping = ("embedder", "unet-worker-light", "controlnet-svc", "discriminator")

    with running("docker-compose.embedded.yml", **folder) as suite:
        answer = json.loads(suite.generate(tmp_path / "picture.png", "--json"))
        logs = {service: suite.run("logs", "--no-color", service) for service in skipping}

    assert answer["spec"]["model"] == "mine"
    assert {service: log.count("nothing is served here") for service, log in logs.items()} == dict.fromkeys(skipping, 1)
