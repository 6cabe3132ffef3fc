"""Run the trial's pods as processes of this machine: the manifests' variables, with ports and folders of the test."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from lab.fixtures.charts.rendering import CHART, missing_tools, render
from lab.fixtures.charts.starting import SETTINGS, environments, image_variables
from pentimento import Client, ImageRequest
from pentimento.rpc.probe import status_of

ROOT = Path(__file__).resolve().parents[3]
# As few processes as an image with a cache needs.
FEW = {"workers": {"light": None}, "controlnet": {"enabled": False}, "discriminator": {"enabled": False}}
LIMIT_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class LocalPods:
    """Run each container of a release as a process: `sockets` are their probes' addresses by component."""

    def __init__(self, given: Mapping[str, Mapping[str, str]], folder: Path) -> None:
        self.folder = folder
        self._given = given
        self.ports = {name: free_port() for name in given}
        self.sockets = {name: f"unix:{folder}/{name}.sock" for name in given}
        self.running = {name: self._start(name, own) for name, own in given.items()}

    def _start(self, name: str, given: Mapping[str, str]) -> subprocess.Popen[bytes]:
        section, _ = SETTINGS["unet-worker" if name.startswith("unet-worker") else name]
        own = {key: self._here(name, value) for key, value in (dict(image_variables()) | dict(given)).items()}
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", f"services.{section}"]
            return subprocess.Popen(command, cwd=ROOT, env=os.environ | own, stdout=log, stderr=log)

    def _here(self, name: str, value: str) -> str:
        """Return a variable's value for this machine."""
        places = {f"pentimento-{other}:50051": f"127.0.0.1:{port}" for other, port in self.ports.items()}
        places |= {f"$(POD_NAME).pentimento-{name}.images.svc:50051": f"127.0.0.1:{self.ports[name]}"}
        places |= {"$(POD_IP):50051": f"127.0.0.1:{self.ports[name]}", "unix:/tmp/pentimento.sock": self.sockets[name]}
        places |= {f"0.0.0.0:{port}": f"127.0.0.1:{self.ports[name]}" for port in (50051, 50480)}
        places |= {"0.0.0.0:9100": "127.0.0.1:0", "/models": str(ROOT / "zoo" / "weights")}
        for place in ("/var/lib/pentimento", "/var/cache/pentimento", "/usr/share/pentimento", "/profiles"):
            places[place] = f"{self.folder}/files"
        for before in sorted(places, key=len, reverse=True):
            if value.startswith(before) or f",{before}" in value or f"//{before}" in value:
                value = value.replace(before, places[before], 1)
        return value

    def await_serving(self, name: str) -> None:
        """Return once the component's readiness probe succeeds. A process that ends is started again, as the kubelet
        does: the edge ends until the frontdoor has made its key. AssertionError with the log otherwise."""
        end = time.monotonic() + LIMIT_S
        while status_of(self.sockets[name]) != "SERVING":
            assert time.monotonic() < end, (self.folder / f"{name}.log").read_text()
            if self.running[name].poll() is not None:
                self.running[name] = self._start(name, self._given[name])
            time.sleep(0.5)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[LocalPods]:
    if missing := missing_tools():
        pytest.skip(missing)
    (tmp_path / "files" / "profiles").mkdir(parents=True)
    release = environments(render([CHART / "examples" / "trial.yaml", FEW], tmp_path))
    started = LocalPods(release, tmp_path)
    yield started
    started.end()


@pytest.mark.slow
def test_pods_of_the_trial_serve_an_image_and_drain(pods: LocalPods) -> None:
    for name in pods.running:
        pods.await_serving(name)
    assert status_of(pods.sockets["frontdoor"], "liveness") == "SERVING"

    with Client(f"127.0.0.1:{pods.ports['frontdoor']}") as client:
        image = client.generate(ImageRequest("a red circle", seed=1))
    assert image.data.startswith(b"\x89PNG")
    edge = f"http://127.0.0.1:{pods.ports['edge']}"
    assert [httpx.get(f"{edge}/{page}").status_code for page in ("health", "ready")] == [200, 200]

    pods.running["frontdoor"].terminate()
    assert pods.running["frontdoor"].wait(LIMIT_S) == 0
