"""Put a discriminator process together."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from pentimento.diffusion.device import exact_device
from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.rpc import RpcServer
from services.discriminator.network_scorer import NetworkScorer
from services.discriminator.scoring import Discriminator
from services.discriminator.serving import BusyShare, DiscriminatorProcess, serve
from services.discriminator.settings import DiscriminatorSettings

logger = logging.getLogger(__name__)


def wire(settings: DiscriminatorSettings) -> DiscriminatorProcess:
    """Call it inside the event loop that the process runs on."""
    server, busy, directories = RpcServer(settings.rpc, "discriminator"), BusyShare(), settings.directories()
    if settings.missing:
        logger.warning("%s: light images of it are not scored", settings.missing)
    device = exact_device(settings.device)
    # OpenMP keeps the number by thread. This thread reads prompts: with more, a second thread would wait for work in a
    # loop, for a tenth of a core.
    torch.set_num_threads(settings.threads)

    @contextmanager
    def inside() -> Iterator[None]:
        torch.set_num_threads(settings.threads)
        yield

    def opened() -> dict[str, PictureDiscriminator]:
        with inside():
            return {
                cascade: open_discriminator(directory, accept_other_digest=settings.accept_other_digest, device=device)
                for cascade, directory in directories.items()
            }

    scorer = NetworkScorer(tuple(directories), opened, settings.max_batch_size, inside, busy.add)
    return serve(settings, server, Discriminator(scorer), busy, lambda replica: replace(replica, device=str(device)))
