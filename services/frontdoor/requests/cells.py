"""Decide which requests this cell accepts or answers, and lead callers of others to their cell."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.domain.errors import NotFound, PentimentoError, Unavailable
from pentimento.domain.image_request import CellAddress, TenantCells
from pentimento.domain.reasons import Reason
from pentimento.policies.cells import CellMap
from pentimento.stores.ledger import Journal
from services.frontdoor.metrics import CELL, OTHER_CELL
from services.frontdoor.requests.jobs import Jobs

# A former cell that does not answer in this time may hold the key: the call fails, and its retry asks again.
ASK_TIMEOUT_S = 5.0
RETRY_MS = 1000


@dataclass(frozen=True)
class CellGate:
    """Check calls for this cell. `own`: its name; "" in a suite without cells, which accepts all.

    A request runs once: with an idempotency key, the tenant's new cell first asks each former one for the key. A cell
    that was asked has handed the tenant over, also against its own lists: cells may learn of a new list in any order.
    While a list is taken back, two cells may be former ones by each other's lists; they ask each other for every key.
    """

    cells: CellMap
    own: str
    open_frontdoor: Callable[[str], FrontdoorClient]
    jobs: Jobs
    journal: Journal
    # The last cell that has asked for a tenant's keys, and how often one has.
    _handed_over: dict[str, tuple[str, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.own:
            CELL.labels(self.own).set(1)

    def find(self, tenant: str) -> TenantCells:
        names = (self.cells.home(tenant), *self.cells.formers(tenant))
        home, *formers = (CellAddress(name, self.cells.addresses.get(name, "")) for name in names)
        return TenantCells(tenant, home, tuple(formers))

    def check_home(self, tenant: str, hand_over_count: int | None = None) -> None:
        """Raise FailedPrecondition WRONG_CELL if another cell accepts the tenant's new requests. `hand_over_count`: the
        tenant's hand-overs when former cells were asked for the request's key; a further one since then raises too."""
        if not self.own:
            return
        home = self.cells.home(tenant)
        cell, count = self._handed_over.get(tenant, ("", 0))
        if cell and (cell not in self.cells.formers(tenant) or hand_over_count not in (None, count)):
            home = cell
        if home != self.own:
            OTHER_CELL.inc()
            raise self.cells.wrong_cell(home)

    async def check_new(self, tenant: str, idempotency_key: str) -> int | None:
        """Return the number of the tenant's hand-overs before former cells were asked for the key; None without a key.
        Raises as `check_home`; WRONG_CELL also if a former cell has a request with this key, Unavailable
        CELL_UNAVAILABLE if one does not answer."""
        self.check_home(tenant)
        if not self.own or not idempotency_key:
            return None
        _, count = self._handed_over.get(tenant, ("", 0))
        for name in self.cells.formers(tenant):
            if await self._knows(name, tenant, idempotency_key):
                OTHER_CELL.inc()
                raise self.cells.wrong_cell(name)
        return count

    async def find_key(self, tenant: str, idempotency_key: str, cell: str) -> bool:
        """Hand the tenant over to its new cell, and return whether a request here has the key; changes state. Raises
        NotFound for a cell that is not known here."""
        if cell not in self.cells.addresses:
            raise NotFound.of("UNKNOWN_CELL", "cell", "is not among the cells of this frontdoor")
        self._handed_over[tenant] = cell, self._handed_over.get(tenant, ("", 0))[1] + 1
        # Requests that have arrived may not be journalled yet.
        for job in self.jobs:
            if job.request.tenant == tenant and job.request.idempotency_key == idempotency_key:
                return True
        return await asyncio.wrap_future(self.journal.find_key(tenant, idempotency_key, "")) is not None

    def unknown(self, tenant: str, request_id: str, otherwise: PentimentoError) -> PentimentoError:
        """Return the error of an id that no request of the tenant has here: WRONG_CELL if another cell may know it."""
        if not self.own:
            return otherwise
        cell = self.cells.cell_of(request_id)
        if not cell and self.cells.home(tenant) == self.own:
            # Made before the suite had cells.
            cell = next(iter(self.cells.formers(tenant)), "")
        return self.cells.wrong_cell(cell) if cell not in ("", self.own) else otherwise

    async def _knows(self, name: str, tenant: str, idempotency_key: str) -> bool:
        client = self.open_frontdoor(self.cells.addresses[name])
        try:
            return await client.find_key(tenant, idempotency_key, self.own, ASK_TIMEOUT_S)
        except PentimentoError as error:
            message = f"the former cell {name} of the tenant does not answer ({error.reason})"
            metadata = {"cell": name}
            raise Unavailable(Reason.CELL_UNAVAILABLE, message, retry_after_ms=RETRY_MS, metadata=metadata) from error
