"""Put a discriminator process together."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial

import torch

from pentimento.api.safety.v1.safety_service_pb2_grpc import add_SafetyServiceServicer_to_server
from pentimento.diffusion.device import exact_device
from pentimento.diffusion.discriminators import PictureDiscriminator, open_discriminator
from pentimento.diffusion.safety import open_image_classifier, open_prompt_classifier
from pentimento.domain.safety import IMAGE, PROMPT
from pentimento.rpc import RpcServer
from pentimento.service.credits import BusyMeter
from services.discriminator.network_scorer import NetworkScorer
from services.discriminator.safety import FULL_NAME as SAFETY_SERVICE
from services.discriminator.safety import Classifier, SafetyChecks, SafetyServicer
from services.discriminator.scoring import Discriminator
from services.discriminator.serving import DiscriminatorProcess, serve
from services.discriminator.settings import DiscriminatorSettings

logger = logging.getLogger(__name__)

# Texts or images.
MAX_BATCH_SIZE = 16


def wire(settings: DiscriminatorSettings) -> DiscriminatorProcess:
    """Call it inside the event loop that the process runs on."""
    server, busy, directories = (
        RpcServer(settings.rpc, "discriminator"),
        BusyMeter(time.monotonic),
        settings.directories(),
    )
    if settings.missing and not settings.classifier_directories():
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
                cascade: open_discriminator(directory, accept_other_digest=settings.accepts_other_digest, device=device)
                for cascade, directory in directories.items()
            }

    scorer = NetworkScorer(tuple(directories), opened, MAX_BATCH_SIZE, inside, busy.add)
    discriminator = Discriminator(scorer, tuple(settings.classifier_directories()))
    process = serve(settings, server, discriminator, busy, partial(replace, device=str(device)))
    if not directories:
        # A fleet's discriminator without a cascade would be one of any.
        process.registration = None
    process.checks = checks = safety_checks(settings, device, inside)
    server.add(add_SafetyServiceServicer_to_server, SafetyServicer(checks), SAFETY_SERVICE)
    return process


def safety_checks(
    settings: DiscriminatorSettings, device: torch.device, inside: Callable[[], AbstractContextManager[None]]
) -> SafetyChecks:
    """Return the checks by the operator's classifiers, which are loaded later."""
    directories = settings.classifier_directories()
    openers = {PROMPT: open_prompt_classifier, IMAGE: open_image_classifier}

    def opened() -> dict[str, Classifier]:
        with inside():
            return {
                kind: openers[kind](path, settings.unsafe_labels, settings.unsafe_limit, device)
                for kind, path in directories.items()
            }

    return SafetyChecks(frozenset(directories), opened, MAX_BATCH_SIZE, inside)
