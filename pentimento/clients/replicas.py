"""Call the least busy of a service's replicas, and the next one after a failure."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from pentimento.domain.errors import PentimentoError, Unavailable

Client = TypeVar("Client")
T = TypeVar("T")


class ServiceReplicas(Generic[Client]):
    """Hold a client for each address of a service; on the event loop only."""

    def __init__(self, open_client: Callable[[str], Client]) -> None:
        self._open_client = open_client
        self.clients: dict[str, Client] = {}
        # Running calls by address.
        self.running: Counter[str] = Counter()

    def follow(self, addresses: Iterable[str]) -> bool:
        """Call these replicas from now on. Return whether they are others than before."""
        before = self.clients
        self.clients = {at: before.get(at) or self._open_client(at) for at in dict.fromkeys(addresses)}
        return before.keys() != self.clients.keys()

    def least_busy(self, addresses: Iterable[str], rank: Callable[[str], int]) -> list[str]:
        """Return addresses by their running calls, equal ones by `rank`."""
        return sorted(addresses, key=lambda address: (self.running[address], rank(address)))

    async def ask(
        self,
        addresses: Sequence[str],
        call: Callable[[Client], Awaitable[T]],
        skips: Callable[[str, PentimentoError], bool],
    ) -> T:
        """Return the answer of the first replica that gives one. After an error that `skips` accepts the next one is
        called. Raises the last error, Unavailable NO_REPLICA without an address."""
        # All are looked up before the first call: a replica may leave during it.
        clients = [(address, self.clients[address]) for address in addresses]
        last: PentimentoError = Unavailable("NO_REPLICA", "the service has no replica")
        for address, client in clients:
            self.running[address] += 1
            try:
                return await call(client)
            except PentimentoError as error:
                if not skips(address, error):
                    raise
                last = error
            finally:
                self.running -= Counter({address: 1})
        raise last
