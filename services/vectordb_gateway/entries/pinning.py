"""Pin the objects that images started from for as long as their tenants asked, so that a replay finds them."""

import asyncio

from pentimento.domain.clock import Clock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger.cache_ledger import CacheLedger
from pentimento.stores.ledger.cache_records import ObjectPin
from services.vectordb_gateway.entries.checks import SHARED_POOL, check_name, check_object

# No retention is longer: a longer one is a mistake.
_LONGEST_S = 100 * 366 * 86_400.0


class Pinning:
    """How much and how long a tenant may pin is the frontdoor's to say, which knows what it promised."""

    def __init__(self, ledger: CacheLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def pin(self, tenant: str, request_id: str, reference: ObjectReference, duration_s: float) -> float:
        """Keep the object for so long from now, and return until when in seconds since 1970. Raises InvalidArgument,
        NotFound ANCESTOR_GONE."""
        check_name("tenant", tenant)
        check_name("request_id", request_id)
        check_name("object.key", reference.key)
        check_object("object", reference)
        if not 0 < duration_s <= _LONGEST_S:
            raise InvalidArgument.of("duration_ms", f"must be above 0 and at most {_LONGEST_S * 1000:.0f}")
        expires_at = self._clock.wall() + duration_s
        wanted = ObjectPin(tenant, request_id, reference, expires_at)
        await asyncio.wrap_future(self._ledger.pin(wanted, SHARED_POOL))
        return expires_at

    async def unpin(self, tenant: str, request_id: str) -> None:
        """End the pins of the tenant's request. Raises InvalidArgument."""
        check_name("tenant", tenant)
        check_name("request_id", request_id)
        await asyncio.wrap_future(self._ledger.unpin(tenant, request_id))

    async def forget_tenant(self, tenant: str) -> None:
        """Delete the tenant's entries, grants and pins; the next round takes vectors and objects. Raises
        InvalidArgument."""
        check_name("tenant", tenant)
        while await asyncio.wrap_future(self._ledger.forget_tenant(tenant)):
            pass
