"""Test the start of `pentimento up`: its wait and its output."""

import socket
from pathlib import Path

import pytest

from pentimento.cli.suite_running import FleetArrival, banner, check_ports_are_free
from pentimento.domain.errors import FailedPrecondition, Unavailable
from pentimento.domain.fleet import Fleet, Plan, Replica, ReplicaKind, ReplicaStatus, UnplannedModel, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from pentimento.supervisor.models import WEIGHTS, ModelDirectory
from pentimento.supervisor.state import Endpoint
from pentimento.supervisor.suite_settings import ProcessSpec, ServedCascade, Suite, SuiteSettings

SUITE = Suite(
    (
        ProcessSpec("frontdoor", "services.frontdoor", (), "unix:/f", 1),
        ProcessSpec("light-0", "services.unet_worker", (), "unix:/l", 2),
        ProcessSpec("heavy-0", "services.unet_worker", (), "unix:/h", 2),
    )
)


def fleet_of(*workers: str, assigned: bool = True, unplanned: tuple[str, ...] = ()) -> Fleet:
    replicas = tuple(
        ReplicaStatus(Replica(name, ReplicaKind.UNET_WORKER, "unix:/x", 1), 0, live=True) for name in workers
    )
    assignments = tuple(WorkerAssignment(name, "unix:/x", "m", 1) for name in workers) if assigned else ()
    lacking = tuple(UnplannedModel(model, "cpu", "PROFILE_MISSING") for model in unplanned)
    return Fleet(replicas, Plan(PlanVersion(7, 2), assignments), 7, lacking)


def arrival_of(looks: list[Fleet | Exception], limit_s: float = 60.0) -> FleetArrival:
    async def fleet() -> Fleet:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, Exception):
            raise found
        return found

    return FleetArrival(SUITE, fleet, lambda name: f"{name} says no", limit_s)


async def test_arrival_waits_until_all_workers_registered() -> None:
    looks = [Unavailable("GONE", "no"), fleet_of("light-0"), fleet_of("light-0", "heavy-0")]

    assert await arrival_of(looks)() == ""
    assert len(looks) == 1


async def test_arrival_names_workers_that_never_register_with_their_words() -> None:
    late = await arrival_of([fleet_of("light-0")], limit_s=0.0)()

    assert late == ("heavy-0 did not register with the controller within 0 s; heavy-0's last line: heavy-0 says no")


async def test_arrival_of_silent_controller_says_so() -> None:
    late = await arrival_of([Unavailable("GONE", "nobody is there")], limit_s=0.0)()

    assert late.endswith("within 0 s; the controller does not answer: nobody is there")


async def test_arrival_knows_unprofiled_models_once_workers_are_planned() -> None:
    both = ("light-0", "heavy-0")
    arrival = arrival_of([fleet_of(*both, assigned=False), fleet_of(*both, unplanned=("light", "heavy"))])

    assert await arrival() == ""
    assert arrival.unprofiled == ("heavy", "light")


def test_banner_names_addresses_models_and_missing_profiles(tmp_path: Path) -> None:
    models = (ModelDirectory("tiny-heavy", WEIGHTS / "tiny-heavy"), ModelDirectory("my-light", tmp_path / "my light"))
    cascade = ServedCascade(("my-light", "tiny-heavy"), (tmp_path,))
    settings = SuiteSettings(models, tmp_path, policy="joint", cascade=cascade)
    endpoint = Endpoint("unix:/f", "127.0.0.1:1", "unix:/c", "unix:/g", "", 1, http="127.0.0.1:2")

    lines = list(banner(settings, endpoint, tmp_path, ("my-light", "tiny-heavy")))

    assert lines == [
        "HTTP      http://127.0.0.1:2 (the console; OpenAI's images API under /v1)",
        "gRPC      127.0.0.1:1",
        "model     tiny-heavy",
        f"model     my-light from {tmp_path}/my light",
        "cascade   my-light → tiny-heavy",
        "policy    joint lacks what my-light, tiny-heavy cost here; the workers keep their models until then:"
        f" `pentimento profile cost '{tmp_path}/my light' --out my-light-cost.json"
        " && pentimento profile cost tiny-heavy --out tiny-heavy-cost.json`,"
        " then `pentimento up … --profiles my-light-cost.json --profiles tiny-heavy-cost.json`",
        f"files     {tmp_path} (logs, images, journal)",
        f"stop      pentimento down --state-dir {tmp_path}",
    ]


def test_taken_port_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(
            FailedPrecondition, match=f"--http {address} is taken by another process: --http 127.0.0.1:0"
        ):
            check_ports_are_free({"--listen": "unix:/x", "--http": address})

    check_ports_are_free({"--listen": "", "--http": address})
