"""Puts an emulated discriminator process together."""

import random
import time
from dataclasses import dataclass

from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import add_DiscriminatorServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import Registration, generation_at
from pentimento.devices.emulation import EmulatedDiscriminator, read_fleet
from pentimento.domain.clock import SystemClock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability, Replica, ReplicaKind, ReplicaReport
from pentimento.rpc import RpcServer, open_channel
from services.discriminator.emulated_scorer import EmulatedScorer
from services.discriminator.scoring import Discriminator, ScoreLimits
from services.discriminator.servicer import FULL_NAME, DiscriminatorServicer
from services.discriminator.settings import EmulatedDiscriminatorSettings


class BusyShare:
    """Of the time since it was asked last."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._asked_at = time.monotonic()

    def add(self, seconds: float) -> None:
        self._busy_s += seconds

    def take(self) -> float:
        now = time.monotonic()
        share = min(self._busy_s / max(now - self._asked_at, 1e-9), 1.0)
        self._busy_s, self._asked_at = 0.0, now
        return share


@dataclass
class DiscriminatorProcess:
    """`registration` is None without a controller."""

    server: RpcServer
    discriminator: Discriminator
    busy: BusyShare
    settings: EmulatedDiscriminatorSettings
    generation: int
    registration: Registration | None = None

    async def run(self) -> None:
        await self.server.run_until_stopped(self.warm, self.drain)

    async def warm(self) -> None:
        if self.settings.controller_address:
            channel = open_channel(self.settings.controller_address, self.settings.channels)
            self.registration = Registration(ControllerClient(channel), self._replica, self._report)
            self.registration.start()

    async def drain(self) -> None:
        self.discriminator.draining = True
        if self.registration is not None:
            await self.registration.close()

    def _replica(self) -> Replica:
        return Replica(
            instance_id=self.server.instance_id,
            kind=ReplicaKind.DISCRIMINATOR,
            address=self.settings.advertise_address or self.server.bound_addresses[0],
            generation=self.generation,
            device="emulated",
            capabilities=frozenset({Capability.EMULATED}),
        )

    def _report(self) -> ReplicaReport:
        return ReplicaReport(
            instance_id=self.server.instance_id,
            generation=self.generation,
            busy_share=self.busy.take(),
            completed_count=self.discriminator.scored_count,
            draining=self.discriminator.draining,
        )


def wire(settings: EmulatedDiscriminatorSettings) -> DiscriminatorProcess:
    """Call it inside the event loop that the process runs on. Raises what is wrong with the fleet's file."""
    fleet = read_fleet(settings.fleet)
    if fleet.discriminator is None:
        raise InvalidArgument.of("discriminator", f"{settings.fleet} must have a table [discriminator]")
    server, busy = RpcServer(settings.rpc, "discriminator"), BusyShare()
    scorer = _scorer(fleet.discriminator, f"{fleet.seed} {server.instance_id}", busy)
    discriminator = Discriminator(scorer, ScoreLimits(settings.max_images, settings.max_image_bytes))
    servicer = DiscriminatorServicer(discriminator, server.instance_id)
    server.add(add_DiscriminatorServiceServicer_to_server, servicer, FULL_NAME)
    return DiscriminatorProcess(server, discriminator, busy, settings, generation_at(SystemClock()))


def _scorer(emulated: EmulatedDiscriminator, seed: str, busy: BusyShare) -> EmulatedScorer:
    return EmulatedScorer(emulated.score, random.Random(seed), busy.add)
