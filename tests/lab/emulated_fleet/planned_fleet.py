"""Run a controller with a policy, four emulated devices, a discriminator and a frontdoor: real servers over Unix
sockets, in this process, so that a test sees the policy's inputs."""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.emulation.emulated_discriminator.settings import EmulatedDiscriminatorSettings
from lab.emulation.emulated_discriminator.wiring import wire as wire_discriminator
from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.emulated_worker.wiring import wire as wire_worker
from lab.emulation.suite import EmulatedSuite
from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.domain.fleet import HeldModel, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.plan.inputs import Decision, PlanInput
from pentimento.policies.plan.registry import ServingPolicy
from pentimento.policies.thinning import ThinningMode
from pentimento.profiles.document import profiles_to_json
from pentimento.profiles.rules import ThresholdRule
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import load_settings
from pentimento.wire.codec import decode
from services.controller.settings import ControllerSettings, PolicySettings
from services.controller.wiring import ControllerProcess
from services.controller.wiring import wire as wire_controller
from services.unet_worker.process import WorkerProcess
from tests.support.profiles import STEPS_PROFILE, changed, thinned_row

# A device generates 20 light images a second, or 10 heavy ones.
FLEET = """\
seed = 3
default_model = "heavy"
cascade = ["light", "heavy"]

[[models]]
name = "light"
steps = 1
guidance_scale = 1.0
latency_s = { 1 = 0.1, 2 = 0.12, 4 = 0.2 }
load_s = 0.05

[[models]]
name = "heavy"
steps = 4
latency_s = { 1 = 0.2, 2 = 0.25, 4 = 0.4 }
load_s = 0.1

[[devices]]
name = "d"
count = 4
models = ["heavy", "light"]

[discriminator]
score_s = 0.001
"""
# Reports and plans come every second, so that a test has its switch within a few; a busy machine may delay reports by
# two seconds without a plan that lacks their workers.
LEASE_S, PLAN_INTERVAL_S = 3.0, 1.0


@dataclass(frozen=True)
class RecordingSettings(ControllerSettings):
    """`asked`: every context, with the policy's decision."""

    asked: list[tuple[PlanInput, Decision]] = field(default_factory=list)

    def policy(self) -> ServingPolicy:
        policy = super().policy()

        def recording(context: PlanInput) -> Decision:
            decision = policy.allocator(context)
            self.asked.append((context, decision))
            return decision

        return replace(policy, allocator=recording)


@dataclass(frozen=True)
class PlannedFleet:
    suite: FrontdoorSuite
    controller: ControllerProcess
    workers: tuple[WorkerProcess, ...]
    settings: RecordingSettings

    @property
    def plan(self) -> Plan:
        """Return the plan in force at the controller."""
        return self.controller.controller.fleet().plan

    def held(self) -> dict[str, str]:
        """Return the model that each worker holds."""
        return {process.server.instance_id: process.worker.loaded.held.model for process in self.workers}

    async def is_settled(self) -> bool:
        """Return whether frontdoor and workers follow the plan in force."""
        wanted = {assignment.worker_id: assignment.model for assignment in self.plan.assignments}
        acted_on = decode((await self.suite.operator.status()).plan_version, PlanVersion)
        return self.held() == wanted and acted_on == self.plan.version

    async def wait_until(self, condition: Any) -> None:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110 - several independent parts
                await asyncio.sleep(0.02)


@asynccontextmanager
async def planned_fleet(
    folder: Path, policy: str, *, thins: bool = False, slowness: float = 1.0, slo_s: float = 2.0, **serving: Any
) -> AsyncIterator[PlannedFleet]:
    """Run a fleet up to where every part is connected and registered; the policy begins then.

    `thins`: under load, images of the heavy model may take two of their four steps. `slowness`: factor of the devices'
    seconds and of the SLO.
    """
    (folder / "fleet.toml").write_text(slowed(FLEET, slowness))
    fleet, address = folder / "fleet.toml", f"unix:{folder / 'c'}"
    settings = RecordingSettings(
        RpcServerSettings(listen=(address,)),
        policy_settings(fleet, slo_s=slo_s * slowness, **serving),
        lease_s=LEASE_S,
        plan_interval_s=PLAN_INTERVAL_S,
        allocator=policy,
    )
    async with AsyncExitStack() as stack:
        controller = await started(wire_controller(settings, allocator_limit_s=60.0), stack)
        scorer = EmulatedDiscriminatorSettings(*rpc_of(folder, "d"), fleet, controller_address=address)
        await started(wire_discriminator(scorer), stack)
        workers = tuple([await started(wire_worker(worker_of(folder, number, address)), stack) for number in range(4)])
        changes: dict[str, Any] = {"worker_addresses": (), "controller_address": address, "cascade": ("heavy",)}
        if thins:
            profile = halving_profile(folder / "halving.json", workers[0].worker.loaded.held)
            changes |= {"thinning": ThinningMode.LOAD, "profiles": (profile,)}
        suite = await stack.enter_async_context(running_suite(folder, **changes))
        await suite.wait_for_workers(4)
        fleet = PlannedFleet(suite, controller, workers, settings)
        # Hold four workers, the discriminator and the frontdoor.
        await fleet.wait_until(lambda: len(controller.controller.fleet().replicas) == 6)
        begin_policy(controller)
        yield fleet


def policy_settings(fleet: Path, **serving: Any) -> PolicySettings:
    """Return the controller's settings of `pentimento up --emulate`, and further ones."""
    flags = EmulatedSuite.read(fleet).controller_arguments(None)
    return replace(load_settings(PolicySettings, "controller", flags, {}), **serving)


def slowed(fleet: str, slowness: float) -> str:
    """Return the fleet with all of its seconds, which are below one, multiplied."""
    return re.sub(r"(?<= = )0\.\d+", lambda seconds: f"{float(seconds[0]) * slowness:g}", fleet)


def halving_profile(path: Path, held: HeldModel) -> Path:
    """Write a profile: two of four steps keep 0.99 of the quality."""
    profile = changed(
        STEPS_PROFILE,
        model=held.model,
        model_digest=held.model_digest,
        step_count=held.default_steps,
        guidance_scale=held.default_guidance_scale,
        rows=(thinned_row(1, 1, ThresholdRule.LOWER_BOUND, share=0.99),),
    )
    path.write_text(profiles_to_json(profile))
    return path


def begin_policy(controller: ControllerProcess) -> None:
    """Begin now: a controller waits two leases for a complete fleet, and this one is complete."""
    controller.controller._started_s = controller.controller._joined_s = -math.inf
    controller.controller._changed.set()


def worker_of(folder: Path, number: int, controller_address: str) -> EmulatedWorkerSettings:
    return EmulatedWorkerSettings(
        *rpc_of(folder, f"w{number}"),
        folder / "fleet.toml#d",
        objects_url=f"file://{folder / 'objects'}",
        controller_address=controller_address,
    )


def rpc_of(folder: Path, name: str) -> tuple[RpcServerSettings, RpcChannelSettings]:
    return RpcServerSettings(listen=(f"unix:{folder / name}",), instance_id=name), RpcChannelSettings()


async def started(process: Any, stack: AsyncExitStack) -> Any:
    await process.server.start()
    stack.push_async_callback(stopped, process)
    await process.warm()
    process.server.set_serving()
    return process


async def stopped(process: Any) -> None:
    await process.drain()
    if isinstance(process, WorkerProcess):
        await process.close()
    await process.server.stop()
