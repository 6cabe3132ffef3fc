"""Test services without their part of the suite: healthy, with one line of the log, until they are stopped."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pentimento.rpc.probe import status_of

CASES = [
    ("embedder", {"ENCODER": "{}/none", "SKIP_MISSING": "true"}, "no such file or directory: {}/none"),
    (
        "controlnet_svc",
        {"CONTROLNETS": "{}/registry.json", "SKIP_MISSING": "true"},
        "no ControlNet by {}/registry.json",
    ),
    ("discriminator", {"SKIP_MISSING": "true"}, "no cascade"),
    ("discriminator", {"CASCADE": "a,b", "CASCADES": "{}/none", "SKIP_MISSING": "true"}, "no discriminator of a>b"),
    ("unet_worker", {"MODEL": "{}/none", "SKIP_MISSING": "all"}, "no such file or directory: {}/none"),
]


@pytest.mark.parametrize(("service", "settings", "missing"), CASES)
def test_service_without_its_part_is_healthy_until_stopped(
    tmp_path: Path, service: str, settings: dict[str, str], missing: str
) -> None:
    address, log = f"unix:{tmp_path}/s", tmp_path / "log"
    given = {f"PENTIMENTO_{service}_{name}".upper(): value.format(tmp_path) for name, value in settings.items()}
    command = [sys.executable, "-m", f"services.{service}", "--listen", address]
    with log.open("w") as stderr, subprocess.Popen(command, env=os.environ | given, stderr=stderr) as process:
        try:
            while status_of(address, deadline_s=60) != "SERVING":
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        finally:
            process.terminate()

    assert process.returncode == 0
    warnings = [line for line in log.read_text().splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert f"{missing.format(tmp_path)}: nothing is served here" in warnings[0]
