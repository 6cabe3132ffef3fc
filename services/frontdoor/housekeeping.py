"""What is due now and then: levels are published."""

import asyncio

from pentimento.dataplane import Dataplane
from services.frontdoor.metrics import REFUSING_WORKERS
from services.frontdoor.status import publish_levels
from services.frontdoor.worker_links import WorkerLinks

_LEVELS_INTERVAL_S = 1.0


async def publish_levels_forever(dataplane: Dataplane, links: WorkerLinks) -> None:
    while True:
        publish_levels(dataplane)
        REFUSING_WORKERS.set(len(links.refusals()))
        await asyncio.sleep(_LEVELS_INTERVAL_S)
