"""Score light images, and predict scores from prompts, with the discriminators of a cascade."""

import logging
from collections.abc import Callable, Iterable

from pentimento.clients.discriminator import OTHER_DISCRIMINATOR, AttemptKey, DiscriminatorClient
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import ComponentPlacement, ReplicaKind, ServiceEndpoint
from pentimento.domain.foresight import NO_PROMPT_HEAD, PromptForesight
from services.frontdoor.metrics import OTHER_DISCRIMINATORS

logger = logging.getLogger(__name__)


class Discriminators:
    """Call the discriminators of a cascade in rotation, first those where the plan places it; if one fails, call the
    next, at most two."""

    def __init__(self, open_client: Callable[[str], DiscriminatorClient], addresses: tuple[str, ...]) -> None:
        """Use the operator's `addresses`; `follow` adds the plan's."""
        self._open_client = open_client
        self._configured = addresses
        self._clients: dict[str, DiscriminatorClient] = {}
        # Cascades that each discriminator scores, by its address; empty for any.
        self._cascades: dict[str, tuple[str, ...]] = {}
        # Addresses where the plan places each cascade's discriminator.
        self._placed: dict[str, frozenset[str]] = {}
        # Cascades with a discriminator that reads images only, until the discriminators change.
        self._image_only: set[str] = set()
        self._turn = 0
        self.follow(())

    def follow(self, planned: Iterable[ServiceEndpoint], components: Iterable[ComponentPlacement] = ()) -> None:
        """Set the discriminators to call, and their order. Endpoints and placements of other kinds are ignored."""
        planned = tuple(planned)
        own = {endpoint.address: endpoint for endpoint in planned if endpoint.kind is ReplicaKind.DISCRIMINATOR}
        self._cascades = dict.fromkeys(self._configured, ()) | {at: own[at].available_models for at in own}
        addresses = {endpoint.instance_id: at for at, endpoint in own.items()}
        self._placed = {
            one.component: frozenset(addresses[name] for name in one.instance_ids if name in addresses)
            for one in components
            if one.kind is ReplicaKind.DISCRIMINATOR
        }
        if self._clients.keys() != self._cascades.keys():
            self._image_only.clear()
        self._clients = {at: self._clients.get(at) or self._open_client(at) for at in self._cascades}

    async def score(
        self,
        cascade: str,
        key: AttemptKey,
        image: bytes,
        prompt: Embedding | None,
        timeout_s: float,
        digest: str = "",
    ) -> float | None:
        """Return the confidence; None if no discriminator answers in time.

        Some discriminators read the prompt in addition to the image. If `digest` names a discriminator, only its answer
        counts.
        """
        prompts = {} if prompt is None else {key: prompt}
        for address, client in self._next_two(cascade):
            try:
                return (await client.score(cascade, [(key, image)], timeout_s, prompts, digest))[key]
            except PentimentoError as error:
                _count_other(error)
                said = {"address": address, "reason": error.reason, "error": error.message}
                logger.warning("an image was not scored", extra=said)
        return None

    def may_read_prompts(self, cascade: str) -> bool:
        """Return False once a discriminator of the cascade has answered that it reads images only."""
        return cascade not in self._image_only

    async def foresee(
        self, cascade: str, prompt: Embedding, timeout_s: float, digest: str = "", threshold: float | None = None
    ) -> PromptForesight | None:
        """Return the prediction for the light image from the prompt alone, at that confidence threshold or else the
        discriminator's own; None if no discriminator answers in time, or if it reads images only or has another digest
        than `digest`."""
        for address, client in self._next_two(cascade):
            try:
                return await client.foresee(cascade, prompt, timeout_s, digest, threshold)
            except PentimentoError as error:
                _count_other(error)
                if error.reason == NO_PROMPT_HEAD:
                    self._image_only.add(cascade)
                logger.debug("no prediction from a prompt", extra={"address": address, "reason": error.reason})
        return None

    def _next_two(self, cascade: str) -> list[tuple[str, DiscriminatorClient]]:
        cascades, placed = self._cascades, self._placed.get(cascade, frozenset())
        clients = [entry for entry in self._clients.items() if not cascades[entry[0]] or cascade in cascades[entry[0]]]
        self._turn += 1
        first = [entry for entry in clients if entry[0] in placed]
        others = [entry for entry in clients if entry[0] not in placed]
        return [*_turned(first, self._turn), *_turned(others, self._turn)][:2]


def _count_other(error: PentimentoError) -> None:
    if error.reason == OTHER_DISCRIMINATOR:
        OTHER_DISCRIMINATORS.inc()


def _turned(clients: list[tuple[str, DiscriminatorClient]], turn: int) -> list[tuple[str, DiscriminatorClient]]:
    """Rotate the clients by `turn`."""
    at = turn % len(clients) if clients else 0
    return [*clients[at:], *clients[:at]]
