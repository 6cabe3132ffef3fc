"""Evict ControlNets on a device that holds two of three."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from lab.fixtures.lora_files import write_tensors
from pentimento.diffusion.controlnets import ControlNet
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import InvalidArgument, PentimentoError, ResourceExhausted
from services.controlnet_svc.networks import NetworkShelf, ShelvedNetwork, weight_bytes
from tests.support.logged import said_by


class _Network:
    """A network that no test calls: the tests only ask for residency."""


UNREADABLE = InvalidArgument.of("weights", "cannot be read")


def shelf(
    *unloadable: str,
    budget_bytes: int = 200,
    error: Exception = UNREADABLE,
    now_s: Callable[[], float] = time.monotonic,
) -> NetworkShelf:
    def network(name: str) -> ShelvedNetwork:
        def load() -> ControlNet:
            if name in unloadable:
                raise error
            return _Network()  # type: ignore[return-value]

        adapter = Adapter(name, AdapterKind.CONTROLNET, f"sha256:{name}", "stable_diffusion")
        return ShelvedNetwork(adapter, 100, load)

    return NetworkShelf({name: network(name) for name in ("canny", "depth", "pose")}, budget_bytes, lambda: None, now_s)


async def use(of: NetworkShelf, *names: str) -> None:
    for name in names:
        async with of.hold(name):
            pass


@pytest.mark.parametrize(
    ("placed", "used", "resident"),
    [
        ([["canny"]], ("depth", "depth", "pose"), {"canny", "pose"}),
        ([["canny"], ["depth"]], ("canny", "canny", "pose"), {"depth", "pose"}),
        ([["canny", "depth"]], ("pose",), {"pose"}),
    ],
    ids=["last", "placed no more", "nothing else"],
)
async def test_placed_networks_give_way_last(
    placed: list[list[str]], used: tuple[str, ...], resident: set[str]
) -> None:
    there = shelf()
    for names in placed:
        await there.place(names)
    await use(there, *used)

    assert resident <= set(there.resident)
    assert len(there.resident) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UNREADABLE, "INVALID_FIELD"),
        (OSError("the disk went away"), "CONTROLNET_FAILED"),
        (torch.OutOfMemoryError("no room"), "NO_DEVICE_MEMORY"),
    ],
)
async def test_failed_load_leaves_others_and_gives_reason(error: Exception, reason: str) -> None:
    there = shelf("canny", error=error)
    await there.place(["none", "canny", "depth"])

    assert there.resident == ("depth",)
    with pytest.raises(PentimentoError) as caught:
        await use(there, "canny")
    assert caught.value.reason == reason


async def test_network_beyond_budget_is_not_announced() -> None:
    there = shelf(budget_bytes=99)

    assert there.networks == ()
    assert there.adapters == ()
    await there.prefetch(["canny"])
    with pytest.raises(ResourceExhausted) as caught:
        await use(there, "canny")
    assert caught.value.reason == "NO_DEVICE_MEMORY"


@dataclass
class _Loads:
    """Loads of ControlNets that end when they are let, and which have begun."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    let: threading.Event = field(default_factory=threading.Event)
    begun_names: list[str] = field(default_factory=list)

    def network(self, name: str) -> ShelvedNetwork:
        loop, network = asyncio.get_running_loop(), shelf().find(name)

        def load() -> ControlNet:
            self.begun_names.append(name)
            loop.call_soon_threadsafe(self.begun.set)
            self.let.wait()
            return network.load()

        return replace(network, load=load)


async def test_load_continues_without_its_stream_and_serves_next_one() -> None:
    loads = _Loads()
    there = NetworkShelf({name: loads.network(name) for name in ("canny", "depth")}, 200, lambda: None)
    left = asyncio.ensure_future(use(there, "canny"))
    await loads.begun.wait()

    left.cancel()
    await asyncio.wait([left])
    following = [asyncio.ensure_future(use(there, name)) for name in ("canny", "depth")]
    await asyncio.sleep(0)
    loads.let.set()
    await asyncio.gather(*following)

    assert left.cancelled()
    assert (loads.begun_names, there.load_count) == (["canny", "depth"], 2)
    assert set(there.resident) == {"canny", "depth"}


async def test_failed_load_without_stream_lets_next_one_load(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = shelf("canny")
    left = asyncio.ensure_future(use(there, "canny"))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])

    await use(there, "depth")

    assert there.resident == ("depth",)
    assert [record.getMessage() for record in said_by("services.controlnet_svc.networks", caplog)] == [
        "a ControlNet does not load: INVALID_FIELD"
    ]


@pytest.mark.parametrize(
    ("stored", "device", "wanted_bytes"),
    [
        ((("F32", ""),), torch.float32, 4000),
        ((("F32", ""),), torch.float16, 2000),
        ((("F16", ""),), torch.float16, 2000),
        ((("F16", ""),), torch.float32, 4000),
        ((("F32", ""), ("F16", ".fp16")), torch.float16, 2000),
    ],
    ids=["full", "halved", "half", "doubled", "one of two variants"],
)
def test_weight_bytes_follow_device_precision(
    tmp_path: Path, stored: tuple[tuple[str, str], ...], device: torch.dtype, wanted_bytes: int
) -> None:
    types = {"F32": torch.float32, "F16": torch.float16}
    for name, variant in stored:
        write_tensors(
            tmp_path / f"diffusion_pytorch_model{variant}.safetensors", {"weight": torch.zeros(1000, dtype=types[name])}
        )

    assert weight_bytes(tmp_path, device) == wanted_bytes


async def test_network_that_loads_slowly_outlasts_equal_one() -> None:
    seconds = iter([0.0, 9.0, 10.0, 10.1, 20.0, 21.0])
    there = shelf(now_s=lambda: next(seconds))

    await use(there, "canny", "depth", "depth", "pose")

    assert set(there.resident) == {"canny", "pose"}
