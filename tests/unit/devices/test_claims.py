"""Claims on GPUs by real processes, with a list of devices in the place of nvidia-smi's."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pentimento.devices.claims import claim_device, gpus_of
from pentimento.domain.errors import FailedPrecondition

GPUS = ("GPU-a", "GPU-b")
# Claims as a replica does, says which it has, and keeps it for as long as it runs.
REPLICA = """
import sys
from pathlib import Path
from pentimento.devices.claims import claim_device
print(claim_device(Path(sys.argv[1]), "unet_worker", ("GPU-a", "GPU-b"), int(sys.argv[2])).device, flush=True)
sys.stdin.read()
"""
Replica = subprocess.Popen[str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[Replica, str]]]:
    """Return a function that starts a replica and returns it with its claim."""
    started: list[Replica] = []

    def started_replica(claims_per_device: int = 1) -> tuple[Replica, str]:
        command = [sys.executable, "-c", REPLICA, str(tmp_path), str(claims_per_device)]
        replica = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(replica)
        assert replica.stdout is not None
        return replica, replica.stdout.readline().strip()

    yield started_replica
    for replica in started:
        replica.kill()
        replica.communicate()


def test_claim_two_replicas_have_one_device_each(start: Callable[..., tuple[Replica, str]], tmp_path: Path) -> None:
    claimed = [start()[1] for _ in GPUS]

    assert claimed == ["GPU-a", "GPU-b"]
    with pytest.raises(FailedPrecondition, match="each of 2 GPUs has 1 of these processes") as none_free:
        claim_device(tmp_path, "unet_worker", GPUS, 1)
    assert none_free.value.reason == "NO_FREE_DEVICE"
    assert claim_device(tmp_path, "controlnet_svc", GPUS[::-1], 1).device == "GPU-b"


def test_claim_of_killed_replica_is_free(start: Callable[..., tuple[Replica, str]]) -> None:
    first, _ = start()
    start()

    first.kill()
    first.wait()

    assert start()[1] == "GPU-a"


def test_claim_more_replicas_than_devices_share_evenly(
    start: Callable[..., tuple[Replica, str]], tmp_path: Path
) -> None:
    claimed = [start(2)[1] for _ in range(4)]

    assert claimed == ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]
    with pytest.raises(FailedPrecondition, match="no GPU is free"):
        claim_device(tmp_path, "unet_worker", GPUS, 2)


def test_claim_that_is_released_is_free(tmp_path: Path) -> None:
    claim_device(tmp_path, "unet_worker", GPUS[:1], 1).release()

    assert claim_device(tmp_path, "unet_worker", GPUS[:1], 1).device == "GPU-a"


LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-aa-1)
GPU 1: NVIDIA H200 (UUID: GPU-bb-2)
  MIG 1g.18gb     Device  0: (UUID: MIG-c1)
  MIG 1g.18gb     Device  1: (UUID: MIG-c2)
"""


VISIBLE: list[tuple[str, str | None, tuple[str, ...]]] = [
    (LISTED, None, ("GPU-aa-1", "MIG-c1", "MIG-c2")),
    (LISTED, "0", ("GPU-aa-1",)),
    (LISTED, "MIG-c2, GPU-aa-1", ("MIG-c2", "GPU-aa-1")),
    (LISTED, "", ()),
    ("", None, ()),
]


def test_gpus_of_listed_and_visible_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    for listed, visible, found in VISIBLE:
        assert gpus_of(listed, visible) == found, visible


@pytest.mark.parametrize(
    ("service", "given"), [("unet_worker", "MODEL={0}/tiny-light"), ("controlnet_svc", "CONTROLNETS={0}/registry.json")]
)
def test_service_without_a_free_gpu_ends_with_the_reason(tmp_path: Path, service: str, given: str) -> None:
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-a)'\n")
    nvidia_smi.chmod(0o755)
    claim_device(tmp_path, service, GPUS[:1], 1)
    name, _, value = given.format(Path(__file__).parents[3] / "zoo" / "weights").partition("=")
    settings = {name: value, "DEVICE_CLAIMS_DIR": str(tmp_path)}
    environment = {f"PENTIMENTO_{service}_{key}".upper(): one for key, one in settings.items()}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    ended = subprocess.run(
        [sys.executable, "-m", f"services.{service}"],
        env=os.environ | path | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (ended.returncode, ended.stderr.splitlines()[-1][:40]) == (1, "no GPU is free: each of 1 GPUs has 1 of ")
