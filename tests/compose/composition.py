"""Run a composition of docker-compose.*.yml files, and always take it down with its volumes."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from PIL import Image, ImageDraw

from pentimento import Client
from tests.support.tiny_models import size_px

ROOT = Path(__file__).resolve().parent.parent.parent


def compose_command() -> list[str] | None:
    """Return the command of the installed Compose: v2, else 1.29; None without either or without a running engine."""
    if not answers(["docker", "info"]):
        return None
    if answers(["docker", "compose", "version"]):
        return ["docker", "compose"]
    return ["docker-compose", "--compatibility"] if shutil.which("docker-compose") else None


def answers(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def has_image(name: str) -> bool:
    """Return whether an image is here, or can be pulled within a minute."""
    if answers(["docker", "image", "inspect", name]):
        return True
    try:
        return subprocess.run(["docker", "pull", "--quiet", name], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def outline(file: Path) -> Path:
    """Draw a circle's edge, of the size of the model's images, for a ControlNet."""
    width, height = size_px("tiny-heavy")
    image = Image.new("RGB", (width, height))
    ImageDraw.Draw(image).ellipse((width // 4, height // 4, 3 * width // 4, 3 * height // 4), outline="white")
    image.save(file)
    return file


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


# Prints the replicas of the controller's fleet.
FLEET = """
import asyncio
from pentimento.clients.controller import ControllerClient
from pentimento.rpc import RpcChannelSettings, open_channel

async def main():
    async with open_channel("unix:/tmp/pentimento.sock", RpcChannelSettings()) as channel:
        for one in (await ControllerClient(channel).fleet()).replicas:
            if one.live:
                print(one.replica.instance_id, one.completed_count)

asyncio.run(main())
"""


class Composition:
    """Run docker-compose files as one project with its own port; a command that fails is an AssertionError."""

    def __init__(self, command: Sequence[str], *files: str, **surroundings: str) -> None:
        self.address, self.http_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self._command = [*command, "--project-name", f"pentimento-test-{os.getpid()}"]
        for file in files:
            self._command += ["--file", str(ROOT / file)]
        own = {"BUILD_NETWORK": "host", "PENTIMENTO_TAG": "test"}
        own |= {"PENTIMENTO_PUBLISH": self.address, "PENTIMENTO_PUBLISH_HTTP": self.http_address}
        self._environment = os.environ | own | surroundings

    def run(self, *arguments: str, limit_s: float = 60) -> str:
        return succeed([*self._command, *arguments], self._environment, limit_s)

    def up(self) -> None:
        """Build missing images, start, and return once the edge and all its dependencies are healthy."""
        self.run("build", limit_s=800)
        self.start()

    def start(self, **replicas: int) -> None:
        """Start the stopped services. `replicas` has counts by service, with `_` for `-`."""
        scales = [f"--scale={name.replace('_', '-')}={count}" for name, count in replicas.items()]
        self.run("up", "--detach", "--no-build", *scales, limit_s=400)
        self._wait_until_healthy("edge")

    def down(self) -> None:
        """Remove everything except the images: their layers serve the next build."""
        self.run("down", "--volumes", "--remove-orphans", limit_s=180)

    def container(self, service: str) -> dict[str, Any]:
        """Return the engine's description of a service's only container, running or not."""
        (inspected,) = self.containers(service)
        return inspected

    def containers(self, service: str) -> list[dict[str, Any]]:
        """Return the engine's descriptions of a service's containers, running or not."""
        identifiers = self.run("ps", "--all", "--quiet", service).split()
        inspected: list[dict[str, Any]] = json.loads(succeed(["docker", "inspect", *identifiers], self._environment))
        return inspected

    def replicas(self) -> dict[str, int]:
        """Return the number of completed requests of each live replica."""
        lines = self.python("controller", FLEET).splitlines()
        return {name: int(count) for name, count in (line.split() for line in lines)}

    def await_start_from_cache(self, output: Path, *options: str) -> dict[str, Any]:
        """Repeat the request until it starts from the cache: an entry is committed after its image was answered."""
        while True:
            answer: dict[str, Any] = json.loads(self.generate(output, "--json", *options))
            if answer["route"]["start"]["kind"] == "FromLatent":
                return answer

    def python(self, service: str, code: str) -> str:
        """Return the output of Python code run in a service's container."""
        return self.run("exec", "-T", service, "python", "-c", code, limit_s=300).strip()

    @contextmanager
    def started_python(self, service: str, code: str) -> Iterator[IO[str]]:
        """Yield the output of Python code while it runs in a service's container, and end it afterwards."""
        command = [*self._command, "exec", "-T", service, "timeout", "900", "python", "-c", code]
        with subprocess.Popen(
            command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as running_python:
            assert running_python.stdout is not None
            try:
                yield running_python.stdout
            finally:
                running_python.kill()

    def metrics(self, service: str, name: str) -> dict[str, float]:
        """Return a service's samples of a metric, by labels as exported; empty before the first count."""
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9100/metrics').read().decode())"
        lines = self.python(service, code).splitlines()
        samples = [
            line.removeprefix(name).rsplit(" ", 1) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        ]
        return {labels: float(value) for labels, value in samples}

    def await_adapters(self, *names: str, token: str = "") -> None:
        """Return once requests may name the adapters: services start without waiting for the replicas that have
        them."""
        with Client(self.address, token=token) as client:
            while not {adapter.name for adapter in client.list_adapters()} >= {*names}:
                time.sleep(0.2)

    def generate(self, output: Path, *options: str) -> str:
        """Run `pentimento generate` on the host through the published port, and return its output."""
        command = [sys.executable, "-m", "pentimento.cli", "generate", "a red circle on a white background", *options]
        return succeed([*command, "--address", self.address, "--output", str(output)], self._environment, 120)

    def image_by_url(self, token: str = "") -> bytes:
        """Request an image over HTTP through the published port, and return the bytes at its URL."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        asked = {"prompt": "a red circle", "response_format": "url"}
        with httpx.Client(base_url=f"http://{self.http_address}", timeout=120) as http:
            answer = http.post("/v1/images/generations", json=asked, headers=headers)
            assert answer.status_code == 200, answer.text
            read = http.get(answer.json()["data"][0]["url"])
        assert read.status_code == 200, read.text
        return read.content

    def _wait_until_healthy(self, service: str) -> None:
        """Follow the engine's events since the container's last start; the engine keeps the newest few hundred."""
        container = self.container(service)
        if container["State"]["Health"]["Status"] == "healthy":
            return
        events = ["docker", "events", "--since", container["State"]["StartedAt"], "--format", "{{.Status}}"]
        filters = ["--filter", f"container={container['Id']}", "--filter", "event=health_status"]
        with subprocess.Popen([*events, *filters], stdout=subprocess.PIPE, text=True) as following:
            assert following.stdout is not None
            try:
                status = next(line.strip() for line in following.stdout)
            finally:
                following.kill()
        assert status == "health_status: healthy"


def succeed(command: Sequence[str], environment: Mapping[str, str], limit_s: float = 60) -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(*files: str, **surroundings: str) -> Iterator[Composition]:
    """Start the composition, and always take it down. Skip the test without an engine."""
    command = compose_command()
    if command is None:
        pytest.skip("no container engine with Compose runs here")
    composition = Composition(command, *files, **surroundings)
    try:
        composition.up()
        yield composition
    except AssertionError:
        print(composition.run("logs", "--no-color", "--tail", "40"))
        raise
    finally:
        composition.down()
