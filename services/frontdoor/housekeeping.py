"""What is due now and then: levels are published."""

import asyncio

from pentimento.dataplane import Dataplane
from services.frontdoor.status import publish_levels

_LEVELS_INTERVAL_S = 1.0


async def publish_levels_forever(dataplane: Dataplane) -> None:
    while True:
        publish_levels(dataplane)
        await asyncio.sleep(_LEVELS_INTERVAL_S)
