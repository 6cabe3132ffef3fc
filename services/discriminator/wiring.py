"""Puts a discriminator process together."""

import logging
from dataclasses import replace

import torch

from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.rpc import RpcServer
from services.discriminator.network_scorer import NetworkScorer, ScoringLimits
from services.discriminator.scoring import Discriminator, ScoreLimits
from services.discriminator.serving import BusyShare, DiscriminatorProcess, serve
from services.discriminator.settings import DiscriminatorSettings

logger = logging.getLogger(__name__)


def wire(settings: DiscriminatorSettings) -> DiscriminatorProcess:
    """Call it inside the event loop that the process runs on."""
    server, busy, directories = RpcServer(settings.rpc, "discriminator"), BusyShare(), settings.directories()
    if settings.missing:
        logger.warning("%s: light images of it are not scored", settings.missing)
    # OpenMP keeps the number by thread. Prompts are read on this one: with more, a second thread would wait for work
    # in a loop, for a tenth of a core.
    torch.set_num_threads(settings.threads)

    def opened() -> dict[str, PictureDiscriminator]:
        torch.set_num_threads(settings.threads)
        return {
            cascade: open_discriminator(directory, accept_other_digest=settings.accept_other_digest)
            for cascade, directory in directories.items()
        }

    limits = ScoringLimits(settings.max_batch_size, settings.queue_limit)
    scorer = NetworkScorer(tuple(directories), opened, limits, busy.add)
    discriminator = Discriminator(scorer, ScoreLimits(settings.max_images, settings.max_image_bytes))
    return serve(settings, server, discriminator, busy, lambda replica: replace(replica, device="cpu"))
