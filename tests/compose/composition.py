"""A composition of docker-compose.*.yml files, run for real and always taken down with its volumes."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def compose_command() -> list[str] | None:
    """Compose as it is installed here: v2, else 1.29; None without either or without an engine that runs."""
    if not answers(["docker", "info"]):
        return None
    if answers(["docker", "compose", "version"]):
        return ["docker", "compose"]
    return ["docker-compose", "--compatibility"] if shutil.which("docker-compose") else None


def answers(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Composition:
    """Files, project name and surroundings of one composition; a command that fails is an AssertionError."""

    def __init__(self, command: Sequence[str], files: Sequence[str], project: str, **surroundings: str) -> None:
        self._command = [*command, "--project-name", project]
        for file in files:
            self._command += ["--file", str(ROOT / file)]
        self._environment = os.environ | {"BUILD_NETWORK": "host", "PENTIMENTO_TAG": "test"} | surroundings

    def run(self, *arguments: str, limit_s: float = 60) -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def up(self) -> None:
        """Builds what is not built yet; returns once everything that something waits for is healthy."""
        self.run("build", limit_s=480)
        self.run("up", "--detach", "--no-build", limit_s=240)

    def down(self) -> None:
        """Takes everything away but the images; those share their layers with the next build."""
        self.run("down", "--volumes", "--remove-orphans", limit_s=120)

    def container(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container, running or not."""
        identifier = self.run("ps", "--all", "--quiet", service).strip()
        described = subprocess.run(
            ["docker", "inspect", identifier], capture_output=True, check=True, timeout=30
        ).stdout
        inspected: dict[str, Any] = json.loads(described)[0]
        return inspected

    def logs(self) -> str:
        return self.run("logs", "--no-color")
