"""What is due now and then: old requests are forgotten with their pictures, levels are published."""

import asyncio
import logging

from pentimento.dataplane import Dataplane
from pentimento.domain.clock import Clock
from pentimento.domain.errors import PentimentoError
from pentimento.stores.ledger import Journal
from services.frontdoor.results import Results
from services.frontdoor.status import publish_levels

logger = logging.getLogger(__name__)

_LEVELS_INTERVAL_S = 1.0
_RETENTION_INTERVAL_S = 60.0
_FORGOTTEN_AT_ONCE = 200


async def publish_levels_forever(dataplane: Dataplane) -> None:
    while True:
        publish_levels(dataplane)
        await asyncio.sleep(_LEVELS_INTERVAL_S)


async def forget_old_requests_forever(journal: Journal, results: Results, clock: Clock, retention_s: float) -> None:
    """Rows first, pictures second: a picture that no row names is swept up, a row without its picture would answer."""
    while True:
        try:
            await _forget_old_requests(journal, results, clock.wall() - retention_s)
        except PentimentoError as error:
            logger.warning("old requests could not be forgotten", extra={"reason": error.reason})
        await asyncio.sleep(_RETENTION_INTERVAL_S)


async def _forget_old_requests(journal: Journal, results: Results, finished_before: float) -> None:
    while True:
        forgotten = await asyncio.wrap_future(journal.forget_finished(finished_before, _FORGOTTEN_AT_ONCE))
        for record in forgotten:
            if record.result is not None:
                await results.discard(record.result.image)
        if len(forgotten) < _FORGOTTEN_AT_ONCE:
            return
