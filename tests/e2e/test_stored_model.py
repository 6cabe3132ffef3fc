"""Serve a registered model from a suite that has none of its files."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pentimento.domain.image_request import ImageRequest
from pentimento.sdk import Client
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.models import find_model


def command(suite: LocalSuite, *words: str) -> "subprocess.CompletedProcess[str]":
    given = [sys.executable, "-m", "pentimento.cli", *words, "--state-dir", str(suite.state.path)]
    return subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)


def test_registered_model_is_served_without_its_directory() -> None:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        state, model = Path(folder) / "state", Path(folder) / "painter"
        shutil.copytree(find_model("tiny-light").path, model)
        with local_suite(("--model", "tiny-light"), state_dir=state) as suite:
            added = command(suite, "models", "add", "mine", str(model), "--licence", "MIT", "--json")
            assert added.returncode == 0, added.stderr
        shutil.rmtree(model)
        with local_suite(("--model", "mine"), state_dir=state) as suite, Client(suite.endpoint.frontdoor) as client:
            image = client.generate(ImageRequest("a red circle", seed=1))
            absent = command(suite, "up", "--model", "absent")

    assert image.provenance.route.model_digest == json.loads(added.stdout)["digest"]
    assert image.provenance.route.model == "mine"
    assert "registered: mine" in absent.stderr
