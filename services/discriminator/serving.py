"""Run a discriminator's process, independent of its scorer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pentimento.api.discriminator.v1.discriminator_service_pb2_grpc import add_DiscriminatorServiceServicer_to_server
from pentimento.domain.fleet import Replica, ReplicaKind
from pentimento.rpc import RpcServer
from pentimento.service.credits import BusyMeter
from pentimento.service.fleet_member import FleetMember, FleetSettings
from pentimento.service.process import ServiceProcess
from services.discriminator.scoring import Discriminator
from services.discriminator.servicer import FULL_NAME, DiscriminatorServicer


class Loaded(Protocol):
    """Load before the process serves, and finish accepted work before it stops."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(kw_only=True)
class DiscriminatorProcess(ServiceProcess):
    discriminator: Discriminator
    checks: Loaded | None = None

    async def finish(self) -> None:
        """Take no more, and finish the accepted images and checks."""
        self.discriminator.draining = True
        await self.discriminator.scorer.close()
        if self.checks is not None:
            await self.checks.close()

    async def prepare(self) -> None:
        """Load the scorer and the classifiers."""
        await self.discriminator.scorer.open()
        if self.checks is not None:
            await self.checks.open()


def serve(
    settings: FleetSettings,
    server: RpcServer,
    discriminator: Discriminator,
    busy: BusyMeter,
    described: Callable[[Replica], Replica],
) -> DiscriminatorProcess:
    """Put the process together; `described` adds the device to the registration."""
    servicer = DiscriminatorServicer(discriminator, server.instance_id)
    server.add(add_DiscriminatorServiceServicer_to_server, servicer, FULL_NAME)
    registration = FleetMember(server, ReplicaKind.DISCRIMINATOR, settings).registration(
        lambda replica: replace(
            described(replica),
            available_models=discriminator.scorer.cascades,
            costs=discriminator.scorer.costs,
            deferrals=discriminator.scorer.deferrals,
        ),
        lambda report: replace(
            report,
            busy_share=busy.share(),
            completed_count=discriminator.scored_count,
            draining=discriminator.draining,
        ),
    )
    return DiscriminatorProcess(server=server, registration=registration, discriminator=discriminator)
