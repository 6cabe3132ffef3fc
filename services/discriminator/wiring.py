"""Puts an emulated discriminator process together."""

import random
import time
from dataclasses import dataclass, replace

from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import add_DiscriminatorServiceServicer_to_server
from pentimento.devices.emulation import EmulatedDiscriminator, read_fleet
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability, ReplicaKind
from pentimento.rpc import RpcServer
from pentimento.service.fleet_member import FleetMember
from pentimento.service.process import ServiceProcess
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


@dataclass(kw_only=True)
class DiscriminatorProcess(ServiceProcess):
    discriminator: Discriminator

    async def finish(self) -> None:
        self.discriminator.draining = True


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
    registration = FleetMember(server, ReplicaKind.DISCRIMINATOR, settings).registration(
        lambda replica: replace(replica, device="emulated", capabilities=frozenset({Capability.EMULATED})),
        lambda report: replace(
            report,
            busy_share=busy.take(),
            completed_count=discriminator.scored_count,
            draining=discriminator.draining,
        ),
    )
    return DiscriminatorProcess(server=server, registration=registration, discriminator=discriminator)


def _scorer(emulated: EmulatedDiscriminator, seed: str, busy: BusyShare) -> EmulatedScorer:
    return EmulatedScorer(emulated.score, random.Random(seed), busy.add)
