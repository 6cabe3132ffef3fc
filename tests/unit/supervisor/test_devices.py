"""Processes are spread over the GPUs that a suite is given, and each sees its own alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pentimento.cli.up import up
from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.devices import environment_of, most_sharers, placed, read_devices, read_places
from pentimento.supervisor.models import ModelDirectory
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import plan_suite
from pentimento.supervisor.suite_settings import ProcessSpec, SuiteSettings

UUID = "GPU-8f3c2c9e-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("text", "visible", "found"),
    [
        ("0,1,2,3", None, ("0", "1", "2", "3")),
        (" 2 , 0", None, ("2", "0")),
        (UUID, None, (UUID,)),
        ("0,1", "4,7", ("4", "7")),
        ("1", f"4,{UUID}", (UUID,)),
    ],
)
def test_read_devices_returns_devices_visible_to_cuda(text: str, visible: str | None, found: tuple[str, ...]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert read_devices("devices", text, environ) == found


@pytest.mark.parametrize("text", ["", "0,", "0,0", "-1", "cuda:0", "0;1", "1000", "\u0661"])
def test_read_devices_rejects_other_names(text: str) -> None:
    with pytest.raises(InvalidArgument, match="devices: must be numbers or UUIDs"):
        read_devices("devices", text, {})


def test_read_devices_rejects_numbers_beyond_visible_ones() -> None:
    with pytest.raises(InvalidArgument, match="devices: must be below 2, the number of GPUs in CUDA_VISIBLE_DEVICES"):
        read_devices("devices", "0,2", {"CUDA_VISIBLE_DEVICES": "4,7"})


@pytest.mark.parametrize("text", ["controlnet_svc", "controlnet_svc=", "frontdoor=0", "=0"])
def test_read_places_rejects_unknown_services_and_no_gpu(text: str) -> None:
    with pytest.raises(InvalidArgument, match="place: must be SERVICE=GPU,… or SERVICE=cpu, once each, of controlnet"):
        read_places([text], ["controlnet_svc", "unet_worker"], {})


def suite_of(tmp_path: Path, **options: Any) -> list[ProcessSpec]:
    """Return the processes of a suite of two models, placed in start order."""
    models = (ModelDirectory("heavy", tmp_path / "h"), ModelDirectory("light", tmp_path / "l"))
    settings = replace(SuiteSettings(models, tmp_path, controlnets=tmp_path / "registry.json"), **options)
    found: list[ProcessSpec] = []
    for spec in plan_suite(settings, StateDirectory(tmp_path / "state")).processes:
        found.append(placed(spec, found))
    return found


def devices_of(specs: list[ProcessSpec]) -> dict[str, str]:
    return {spec.name: spec.device for spec in specs if spec.device}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {}),
        (
            {"devices": ("0", "1", "2", "3"), "copies": 2},
            {"embedder": "0", "controlnet-0": "1"} | {"heavy-0": "2", "heavy-1": "3", "light-0": "0", "light-1": "1"},
        ),
        ({"devices": ("0", "1")}, {"embedder": "0", "controlnet-0": "1", "heavy-0": "0", "light-0": "1"}),
        (
            {"devices": ("0", "1"), "places": {"controlnet_svc": ("2",), "unet_worker/light": ()}},
            {"embedder": "0", "controlnet-0": "2", "heavy-0": "1"},
        ),
        ({"places": {"unet_worker": ("5",)}}, {"heavy-0": "5", "light-0": "5"}),
    ],
)
def test_suite_spreads_workers_over_devices(options: dict[str, Any], found: dict[str, str], tmp_path: Path) -> None:
    assert devices_of(suite_of(tmp_path, **options)) == found


def test_placed_process_sees_its_gpu_alone(tmp_path: Path) -> None:
    specs = {spec.name: spec for spec in suite_of(tmp_path, devices=("1", "3"), places={"unet_worker/light": ()})}

    def device_flag(name: str) -> str:
        arguments = specs[name].arguments
        return arguments[arguments.index("--device") + 1]

    flags = {name: device_flag(name) for name in ("heavy-0", "controlnet-0", "embedder", "light-0")}
    assert flags == {"heavy-0": "cuda", "controlnet-0": "cuda", "embedder": "cuda", "light-0": "cpu"}
    assert environment_of(specs["controlnet-0"], {}) == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert environment_of(specs["heavy-0"], {"CUDA_VISIBLE_DEVICES": "3,1"}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert environment_of(specs["light-0"], {}) == environment_of(specs["frontdoor"], {}) == {}


def test_added_worker_goes_to_least_used_device() -> None:
    first, second, third, fourth = (
        ProcessSpec(name, "services.unet_worker", (), "", 2, devices=("0", "1", "2")) for name in "abcd"
    )
    there = [replace(first, device="0"), replace(fourth, device="1")]

    assert placed(second, there).device == "2"
    assert placed(third, [there[1]]).device == "0"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices", "0", "--device", "cpu"], "--devices and --device exclude each other"),
        (["--devices", "0,0"], "devices: must be numbers or UUIDs"),
        (["--place", "frontdoor=0"], "of controlnet_svc, discriminator, embedder, unet_worker, unet_worker/tiny-heavy"),
    ],
)
def test_up_rejects_contradicting_devices(flags: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(up, [*flags, "--state-dir", str(tmp_path / "state"), "--http", "", "--listen", ""])

    assert done.exit_code != 0
    assert message in f"{done.output}{done.exception}"


@pytest.mark.parametrize(
    ("lists", "most"),
    [
        ([], 1),
        ([()] * 3, 1),
        ([None] * 3, 3),
        ([None] * 65, 64),
        ([("0", "1", "2", "3")] * 4, 1),
        ([("0", "1", "2", "3")] * 5, 2),
        ([("0", "1"), ("0",), ("0",)], 3),
        ([("0",), ("0", "1"), ()], 1),
    ],
)
def test_most_sharers_counts_processes_of_fullest_gpu(lists: list[tuple[str, ...] | None], most: int) -> None:
    assert most_sharers(lists) == most


@pytest.mark.parametrize(
    ("options", "workers", "controlnets"),
    [
        ({"copies": 2, "controlnet_copies": 3}, "4", "3"),
        ({"copies": 2, "controlnet_copies": 3, "devices": ("0", "1")}, "2", "2"),
        ({"copies": 2, "devices": ("0", "1", "2", "3")}, "1", "1"),
        ({"copies": 3, "policy": "many-models", "devices": ("0", "1")}, "2", "1"),
        ({"copies": 2, "places": {"unet_worker/heavy": ("0",), "unet_worker/light": ("1", "2")}}, "2", "1"),
    ],
)
def test_processes_know_how_many_share_their_gpu(
    tmp_path: Path, options: dict[str, Any], workers: str, controlnets: str
) -> None:
    found = {
        (spec.module.rpartition(".")[2], spec.arguments[spec.arguments.index("--claims-per-device") + 1])
        for spec in suite_of(tmp_path, **options)
        if spec.module in ("services.unet_worker", "services.controlnet_svc")
    }

    assert found == {("unet_worker", workers), ("controlnet_svc", controlnets)}
