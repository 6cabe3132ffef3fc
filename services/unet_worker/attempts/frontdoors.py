"""Track the start of each frontdoor that is served: the one of the newest epoch, regardless of its journal."""

import logging
from collections import OrderedDict
from typing import TypeVar

from pentimento.domain.clock import Clock, latest_believable
from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.domain.reasons import Reason
from services.unet_worker import metrics

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED = 4096


def remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    """Store the key as the newest one, and remove the oldest ones beyond the bound."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)


class KnownFrontdoors:
    """Remember the newest epoch of each frontdoor id, and its journal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: OrderedDict[str, tuple[int, str]] = OrderedDict()
        # The last rejected start of each.
        self._refused: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def meet(self, frontdoor_id: str, epoch: int, journal_id: str) -> bool:
        """Record a frontdoor's epoch and return whether it is new. `journal_id` is "" for a frontdoor without one.

        Raises InvalidArgument for an epoch that is too far in the future, Aborted for one that is not the newest.
        """
        latest = latest_believable(self._clock.wall())
        if epoch > latest:
            limit = f"must be at most {latest}, a year ahead of this worker's clock in milliseconds, got {epoch}"
            raise InvalidArgument.of("frontdoor_epoch", limit)
        newest, newest_journal = self._newest.get(frontdoor_id, (-1, ""))
        other_journal = bool(journal_id and newest_journal and journal_id != newest_journal)
        if epoch < newest or (epoch == newest and other_journal):
            self._tell(frontdoor_id, epoch, journal_id, newest)
            raise _stale(epoch, newest, other_journal)
        remember(self._newest, frontdoor_id, (epoch, journal_id or (newest_journal if epoch == newest else "")))
        return epoch > newest

    def _tell(self, frontdoor_id: str, epoch: int, journal_id: str, newest: int) -> None:
        """Count each rejection; log a frontdoor once, not each of its tries."""
        metrics.STALE_EPOCHS.inc()
        if self._refused.get(frontdoor_id) != (epoch, journal_id):
            remember(self._refused, frontdoor_id, (epoch, journal_id))
            fields = {"frontdoor": frontdoor_id, "epoch": epoch, "newest_epoch": newest}
            logger.warning("a frontdoor with an older epoch is rejected", extra=fields)


def _stale(epoch: int, newest: int, other_journal: bool) -> Aborted:
    whose = "with another journal " if other_journal else ""
    message = f"epoch {newest} of this frontdoor {whose}has taken over, got {epoch}"
    metadata = {"newest_epoch": str(newest), "other_journal": str(other_journal).lower()}
    return Aborted(Reason.STALE_EPOCH, message, metadata=metadata)
