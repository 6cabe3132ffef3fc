"""Ask the configured discriminator processes which cascades they score and which classifiers they have."""

import asyncio
import logging
from collections.abc import Callable

from pentimento.api.discriminator.v1.discriminator_service_pb2 import GetStatusResponse
from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.domain.errors import PentimentoError

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
# Between two rounds: while a process or a needed classifier is missing, and else.
SOON_S, LATER_S = 1.0, 10.0


class DiscriminatorAbilities:
    """Hold the newest statement of each process. One without a statement is called for everything: its typed errors
    say what it lacks."""

    def __init__(
        self, open_client: Callable[[str], DiscriminatorClient], addresses: tuple[str, ...], checked: frozenset[str]
    ) -> None:
        """`checked`: what needs a classifier, prompts or images or both."""
        self._clients = {address: open_client(address) for address in addresses}
        self._checked = checked
        self._stated: dict[str, GetStatusResponse] = {}

    def may_score(self, address: str, cascade: str) -> bool:
        """Return False if the process states other cascades, or classifiers only."""
        stated = self._stated.get(address)
        if stated is None or not (stated.cascades or stated.classifiers):
            return True
        return cascade in stated.cascades

    def may_check(self, address: str, subject: str) -> bool:
        """Return False if the process states that it has no classifier of the subject."""
        stated = self._stated.get(address)
        return stated is None or subject in stated.classifiers

    async def ask_forever(self) -> None:
        """Ask all processes again and again; log when a needed classifier is missing, and when it is found."""
        missed: tuple[str, ...] = ()
        while self._clients:
            await self.ask()
            missing = self.missing
            if missing and missing != missed:
                logger.warning(
                    "no reachable process of --discriminator-addresses has a classifier for --safety-checks %s: "
                    "nothing is returned (SAFETY_UNAVAILABLE) until one has",
                    ",".join(missing),
                )
            elif missed and not missing:
                logger.info("every classifier of --safety-checks is found")
            missed = missing
            await asyncio.sleep(SOON_S if missing or len(self._stated) < len(self._clients) else LATER_S)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return what no process that answered has a classifier for."""
        had = {subject for stated in self._stated.values() for subject in stated.classifiers}
        return tuple(sorted(self._checked - had))

    async def ask(self) -> None:
        """Replace all statements; those of processes that do not answer are dropped."""
        await asyncio.gather(*map(self._ask_one, self._clients))

    async def _ask_one(self, address: str) -> None:
        try:
            self._stated[address] = await self._clients[address].status(TIMEOUT_S)
        except PentimentoError as error:
            self._stated.pop(address, None)
            logger.debug("no statement of a discriminator", extra={"address": address, "reason": error.reason})
