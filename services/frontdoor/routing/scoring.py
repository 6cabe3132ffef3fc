"""The effect that asks how good a light picture is. Whatever is down, there is an answer."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.dataplane.effects import Score
from pentimento.dataplane.events import Event, Scored
from pentimento.domain.clock import Clock
from pentimento.domain.errors import PentimentoError
from services.frontdoor.metrics import UNSCORED
from services.frontdoor.requests.jobs import Job, Jobs
from services.frontdoor.routing.stages import cascade_name

logger = logging.getLogger(__name__)


class CascadeScorer(Protocol):
    """What `DiscriminatorClient.score` is to a cascade."""

    async def score(
        self, cascade: str, request_id: str, fencing_token: int, image: bytes, timeout_s: float
    ) -> float | None:
        """The confidence; None when nobody answers in time."""
        ...


class Discriminators:
    """Takes turns among the discriminators there are; one that fails is passed over once."""

    def __init__(self, open_client: Callable[[str], DiscriminatorClient], addresses: tuple[str, ...]) -> None:
        """`addresses` of the operator's; the plan's come beside them."""
        self._open_client = open_client
        self._configured = addresses
        self._clients: dict[str, DiscriminatorClient] = {}
        self._turn = 0
        self.follow(())

    def follow(self, planned: tuple[str, ...]) -> None:
        """Changes state: who is asked from now on."""
        wanted = dict.fromkeys((*self._configured, *planned))
        known: Mapping[str, DiscriminatorClient] = self._clients
        self._clients = {address: known.get(address) or self._open_client(address) for address in wanted}

    async def score(
        self, cascade: str, request_id: str, fencing_token: int, image: bytes, timeout_s: float
    ) -> float | None:
        key = (request_id, fencing_token)
        for address, client in self._next_two():
            try:
                return (await client.score(cascade, [(key, image)], timeout_s))[key]
            except PentimentoError as error:
                logger.warning("a picture was not scored", extra={"address": address, "reason": error.reason})
        return None

    def _next_two(self) -> list[tuple[str, DiscriminatorClient]]:
        clients = list(self._clients.items())
        self._turn += 1
        return [clients[(self._turn + offset) % len(clients)] for offset in range(min(2, len(clients)))]


class ScorePerformer:
    """Answers Score with Scored."""

    def __init__(
        self, scorer: CascadeScorer, jobs: Jobs, submit: Callable[[Event], None], clock: Clock, timeout_s: float
    ) -> None:
        self._scorer = scorer
        self._jobs = jobs
        self._submit = submit
        self._clock = clock
        self._timeout_s = timeout_s

    def score(self, effect: Score) -> None:
        job = self._jobs.get(effect.request_id)
        self._jobs.spawn(job, self._score(job, effect.fencing_token), effect)

    async def _score(self, job: Job, token: int) -> None:
        result = job.executions[token].result
        assert result is not None
        began_at = self._clock.monotonic()
        cascade = cascade_name([stage.model for stage in job.stages])
        confidence = await self._scorer.score(cascade, job.request_id, token, result.image, self._timeout_s)
        job.time_stage("score", began_at, self._clock.monotonic())
        job.executions[token].confidence = confidence
        if confidence is None:
            UNSCORED.inc()
        self._submit(Scored(job.request_id, token, confidence))
