"""Puts an emulated discriminator process together."""

import random
from dataclasses import replace

from pentimento.devices.emulation import EmulatedDiscriminator, read_fleet
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability
from pentimento.rpc import RpcServer
from services.discriminator.emulated_scorer import EmulatedScorer
from services.discriminator.scoring import Discriminator, ScoreLimits
from services.discriminator.serving import BusyShare, DiscriminatorProcess, serve
from services.discriminator.settings import EmulatedDiscriminatorSettings


def wire(settings: EmulatedDiscriminatorSettings) -> DiscriminatorProcess:
    """Call it inside the event loop that the process runs on. Raises what is wrong with the fleet's file."""
    fleet = read_fleet(settings.fleet)
    if fleet.discriminator is None:
        raise InvalidArgument.of("discriminator", f"{settings.fleet} must have a table [discriminator]")
    server, busy = RpcServer(settings.rpc, "discriminator"), BusyShare()
    scorer = _scorer(fleet.discriminator, f"{fleet.seed} {server.instance_id}", busy)
    discriminator = Discriminator(scorer, ScoreLimits(settings.max_images, settings.max_image_bytes))
    return serve(
        settings,
        server,
        discriminator,
        busy,
        lambda replica: replace(replica, device="emulated", capabilities=frozenset({Capability.EMULATED})),
    )


def _scorer(emulated: EmulatedDiscriminator, seed: str, busy: BusyShare) -> EmulatedScorer:
    return EmulatedScorer(emulated.score, random.Random(seed), busy.add)
