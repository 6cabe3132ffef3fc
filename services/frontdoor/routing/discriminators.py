"""Who is asked how good a light picture is."""

import logging
from collections.abc import Callable

from pentimento.clients.discriminator import DiscriminatorClient
from pentimento.domain.errors import PentimentoError

logger = logging.getLogger(__name__)


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
        self._clients = {address: self._clients.get(address) or self._open_client(address) for address in wanted}

    async def score(
        self, cascade: str, request_id: str, fencing_token: int, image: bytes, timeout_s: float
    ) -> float | None:
        """The confidence; None when nobody answers in time."""
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
