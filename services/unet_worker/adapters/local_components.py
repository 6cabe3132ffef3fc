"""Hold the component store of a worker's host with the object store that it is filled from."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.stores.components import ComponentStore, ObjectRemote
from pentimento.stores.objects import ObjectStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalComponents:
    """Hold the components on a host's disk, at most `disk_bytes`, and the object store, which has all."""

    store: ComponentStore
    objects: ObjectStore
    disk_bytes: int

    @property
    def remote(self) -> ObjectRemote:
        return ObjectRemote(self.objects)

    def fetch_ahead(self, references: Iterable[ObjectReference]) -> None:
        """Fetch components to the disk, in order, as long as they fit without an eviction; on any thread. The first
        failure ends it: requests fetch what they need themselves."""
        held = {one.digest: one.size_bytes for one in self.store.held()}
        room_bytes = self.disk_bytes - sum(held.values())
        for reference in references:
            if reference.digest in held or reference.size_bytes > room_bytes:
                continue
            try:
                self.store.load(reference, self.remote, lambda component: None)
            except PentimentoError as error:
                logger.warning("a component was not fetched ahead of need: %s", error.message)
                return
            room_bytes -= reference.size_bytes
