"""Puts an emulated discriminator process together."""

import random
import time
from dataclasses import replace

from lab.emulation.emulated_discriminator.scorer import EmulatedScorer
from lab.emulation.emulated_discriminator.settings import EmulatedDiscriminatorSettings
from lab.emulation.fleet_file import read_fleet
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability
from pentimento.rpc import RpcServer
from pentimento.service.credits import BusyMeter
from services.discriminator.scoring import Discriminator
from services.discriminator.serving import DiscriminatorProcess, serve


def wire(settings: EmulatedDiscriminatorSettings) -> DiscriminatorProcess:
    """Build the process, inside its event loop. Raises InvalidArgument or NotFound for the fleet's file."""
    fleet = read_fleet(settings.fleet)
    if fleet.discriminator is None:
        raise InvalidArgument.of("discriminator", f"{settings.fleet} must have a table [discriminator]")
    server, busy = RpcServer(settings.rpc, "discriminator"), BusyMeter(time.monotonic)
    source = random.Random(f"{fleet.seed} {server.instance_id}")
    scorer = EmulatedScorer(fleet.discriminator.score, source, busy.add, [model.name for model in fleet.models])
    return serve(
        settings,
        server,
        Discriminator(scorer),
        busy,
        lambda replica: replace(replica, device="emulated", capabilities=frozenset({Capability.EMULATED})),
    )
