"""The workers of a lane that have a free credit, in the order in which they are offered work."""

from collections.abc import Iterator


class ReadyWorkers:
    """Least loaded first, longest idle first among equals; every change costs O(1) in the number of workers."""

    def __init__(self) -> None:
        self._load: dict[str, int] = {}
        self._by_load: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._load)

    def __iter__(self) -> Iterator[str]:
        for load in sorted(self._by_load):
            yield from self._by_load[load]

    def set(self, worker_id: str, load: int) -> None:
        """The worker has a free credit and `load` attempts."""
        if self._load.get(worker_id) == load:
            return
        self.discard(worker_id)
        self._load[worker_id] = load
        self._by_load.setdefault(load, {})[worker_id] = None

    def discard(self, worker_id: str) -> None:
        load = self._load.pop(worker_id, None)
        if load is None:
            return
        peers = self._by_load[load]
        del peers[worker_id]
        if not peers:
            del self._by_load[load]
