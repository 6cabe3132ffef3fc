"""Test a fleet with more models than workers: requests for models that no worker ever held are answered, too."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.emulated_worker.wiring import wire as wire_worker
from lab.fixtures.frontdoor_suite import running_suite, until
from pentimento.domain.image_request import CacheMode, Completed, ImageRequest
from pentimento.rpc import RpcServerSettings
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire as wire_controller
from tests.lab.emulated_fleet.planned_fleet import begin_policy, policy_settings, rpc_of, started

MODELS = ("a", "b", "c", "d")
MODEL = """
[[models]]
name = "{0}"
steps = 2
latency_s = {{ 1 = 0.05 }}
load_s = 0.05
"""
DEVICES = """
[[devices]]
name = "w"
count = 2
models = ["a", "b", "c", "d"]
"""


async def test_two_workers_serve_four_models(directory: Path) -> None:
    (directory / "fleet.toml").write_text("seed = 1\n" + "".join(map(MODEL.format, MODELS)) + DEVICES)
    settings = ControllerSettings(
        RpcServerSettings(listen=(f"unix:{directory / 'c'}",)),
        policy_settings(directory / "fleet.toml", slo_s=30.0),
        lease_s=3.0,
        plan_interval_s=0.1,
        allocator="many-models",
    )
    async with AsyncExitStack() as stack:
        controller = await started(wire_controller(settings, allocator_limit_s=60.0), stack)
        address = f"unix:{directory / 'c'}"
        frontdoor = {"worker_addresses": (), "worker_wait_s": 0.0, "controller_address": address}
        suite = await stack.enter_async_context(running_suite(directory, cascade=("a",), **frontdoor))
        for name in ("w1", "w2"):
            own = EmulatedWorkerSettings(
                *rpc_of(directory, name),
                directory / "fleet.toml#w",
                objects_url=f"file://{directory / 'objects'}",
                controller_address=f"unix:{directory / 'c'}",
            )
            await started(wire_worker(own), stack)
        await suite.wait_for_workers(2)
        begin_policy(controller)

        state = suite.frontdoor.interpreter.dataplane.state
        await until(lambda: state.plan is not None and state.plan.allocator == "many-models")
        asked = [ImageRequest("a red circle", model=model, cache=CacheMode.OFF) for model in (*MODELS, *MODELS)]

        images = await asyncio.gather(*map(suite.paint, asked))

    assert all(isinstance(image, Completed) for image in images)
    assert [image.provenance.spec.model for image in images] == [*MODELS, *MODELS]
