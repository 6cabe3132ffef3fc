"""Test a fleet that lost every worker and gets one back: the frontdoor follows the controller's plans."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.emulated_worker.wiring import wire as wire_worker
from lab.fixtures.frontdoor_suite import running_suite, until
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.rpc import RpcServerSettings
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire as wire_controller
from tests.lab.emulated_fleet.planned_fleet import FLEET, begin_policy, policy_settings, rpc_of, started

REQUEST = ImageRequest("a red circle", cache=CacheMode.OFF, deadline_ms=120_000)
# A kind of device for each of the models.
KINDS = """
[[devices]]
name = "{0}-alone"
count = 1
models = ["{0}"]
"""


def worker_of(folder: Path, name: str, model: str) -> EmulatedWorkerSettings:
    return EmulatedWorkerSettings(
        *rpc_of(folder, name),
        folder / f"fleet.toml#{model}-alone",
        objects_url=f"file://{folder / 'objects'}",
        controller_address=f"unix:{folder / 'c'}",
    )


@pytest.mark.parametrize("policy", ["diffserve", "joint"])
async def test_request_without_workers_waits_for_a_returning_model(directory: Path, policy: str) -> None:
    (directory / "fleet.toml").write_text(FLEET + "".join(KINDS.format(model) for model in ("light", "heavy")))
    settings = ControllerSettings(
        RpcServerSettings(listen=(f"unix:{directory / 'c'}",)),
        policy_settings(directory / "fleet.toml", slo_s=30.0),
        lease_s=3.0,
        allocator=policy,
    )
    async with AsyncExitStack() as stack:
        controller = await started(wire_controller(settings, allocator_limit_s=60.0), stack)
        frontdoor = {"worker_addresses": (), "worker_wait_s": 0.0, "controller_address": f"unix:{directory / 'c'}"}
        suite = await stack.enter_async_context(running_suite(directory, cascade=("light", "heavy"), **frontdoor))
        async with AsyncExitStack() as lost:
            for model in ("light", "heavy"):
                await started(wire_worker(worker_of(directory, model, model)), lost)
            await suite.wait_for_workers(2)
            begin_policy(controller)
            await until(lambda: controller.controller.fleet().plan.allocator == policy)
        await until(lambda: not controller.controller.fleet().plan.pools)
        state = suite.frontdoor.interpreter.dataplane.state
        await until(lambda: state.plan is not None and not state.plan.pools)
        generating = asyncio.ensure_future(suite.paint(replace(REQUEST, prompt="who came meanwhile")))
        await until(lambda: "light" in state.pools and state.pools["light"].waiting_count == 1)

        await started(wire_worker(worker_of(directory, "again", "heavy")), stack)

        completed = await generating
    assert isinstance(completed, Completed)
    assert completed.provenance.spec.model == "heavy"
