"""Score light images, and predict scores from prompts, with the discriminators of a cascade."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from pentimento.clients.discriminator import OTHER_DISCRIMINATOR, AttemptKey, DiscriminatorClient
from pentimento.clients.replicas import ServiceReplicas
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import ComponentPlacement, ReplicaKind, ServiceEndpoint
from pentimento.domain.foresight import NO_PROMPT_HEAD, PromptForesight
from services.frontdoor.metrics import OTHER_DISCRIMINATORS

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Discriminators:
    """Call the least busy discriminator of a cascade, first those where the plan places it; if one fails, call the
    next, at most two."""

    def __init__(
        self,
        open_client: Callable[[str], DiscriminatorClient],
        addresses: tuple[str, ...],
        may_score: Callable[[str, str], bool],
    ) -> None:
        """Use the operator's `addresses` for each cascade that they `may_score`; `follow` adds the plan's."""
        self._replicas = ServiceReplicas(open_client)
        self._configured = addresses
        self._may_score = may_score
        # Cascades that each discriminator scores, by its address; empty for any that it may score.
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
        if self._replicas.follow(self._cascades):
            self._image_only.clear()

    async def score(
        self, cascade: str, key: AttemptKey, image: bytes, prompt: Embedding | None, timeout_s: float, digest: str = ""
    ) -> float | None:
        """Return the confidence; None if no discriminator answers in time.

        Some discriminators read the prompt in addition to the image. If `digest` names a discriminator, only its answer
        counts.
        """
        prompts = {} if prompt is None else {key: prompt}
        scores = await self._first(
            cascade,
            lambda client: client.score(cascade, [(key, image)], timeout_s, prompts, digest),
            (logging.WARNING, "an image was not scored"),
        )
        return None if scores is None else scores[key]

    def may_read_prompts(self, cascade: str) -> bool:
        """Return False once a discriminator of the cascade has answered that it reads images only."""
        return cascade not in self._image_only

    async def foresee(
        self, cascade: str, prompt: Embedding, timeout_s: float, digest: str = "", threshold: float | None = None
    ) -> PromptForesight | None:
        """Return the prediction for the light image from the prompt alone, at that confidence threshold or else the
        discriminator's own; None if no discriminator answers in time, or if it reads images only or has another digest
        than `digest`."""
        return await self._first(
            cascade,
            lambda client: client.foresee(cascade, prompt, timeout_s, digest, threshold),
            (logging.DEBUG, "no prediction from a prompt"),
        )

    async def _first(
        self, cascade: str, call: Callable[[DiscriminatorClient], Awaitable[T]], failure: tuple[int, str]
    ) -> T | None:
        """Return the answer of the first of two discriminators that gives one, else None; `failure` is logged."""

        def skips(address: str, error: PentimentoError) -> bool:
            if error.reason == OTHER_DISCRIMINATOR:
                OTHER_DISCRIMINATORS.inc()
            if error.reason == NO_PROMPT_HEAD:
                self._image_only.add(cascade)
            logger.log(*failure, extra={"address": address, "reason": error.reason, "error": error.message})
            return True

        try:
            return await self._replicas.ask(self._next_two(cascade), call, skips)
        except PentimentoError:
            return None

    def _next_two(self, cascade: str) -> list[str]:
        placed = self._placed.get(cascade, frozenset())
        own = [
            at
            for at, cascades in self._cascades.items()
            if (cascade in cascades if cascades else self._may_score(at, cascade))
        ]
        self._turn += 1
        ranks = {at: (number - self._turn) % len(own) for number, at in enumerate(own)}
        in_order = self._replicas.least_busy(own, ranks.__getitem__)
        return sorted(in_order, key=lambda at: at not in placed)[:2]
