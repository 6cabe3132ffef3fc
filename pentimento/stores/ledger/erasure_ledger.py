"""Keep the erasures of deleted tenants, with counts of the deleted data.

The number of objects is stored before the first one is deleted, and counted after the last: a process that is killed
in between repeats the deletion, and each object counts once. Rows count in the transaction that deletes them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, or_, select, update

from pentimento.domain.clock import Clock
from pentimento.domain.erasure import ErasedKind, Erasure, ErasureState
from pentimento.domain.tenants import TenantQuota
from pentimento.files.json_values import to_json
from pentimento.stores.ledger import tenant_tables as tables
from pentimento.stores.ledger.statements import Statement, insert_unless_present
from pentimento.stores.ledger.tenant_ledger import delete_tenant, note_change, renew_tenant, unknown_tenant
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_departures = tables.departures
_ORDER = (_departures.c.deleted_at, _departures.c.tenant_id)
_ALL = Statement(select(_departures).order_by(*_ORDER))
_OF_NAME = Statement(select(_departures).where(_departures.c.tenant == bindparam("name")).order_by(*_ORDER))
_IS_IT = _departures.c.tenant_id == bindparam("id")
_ONE = Statement(select(_departures).where(_IS_IT))
_IS_OPEN = _departures.c.purged_at.is_(None)
_IDENTITIES = select(_departures.c.tenant_id).order_by(*_ORDER)
_KNOWN = Statement(_IDENTITIES)
_ENDED = _IDENTITIES.where(or_(_departures.c.deleted_at <= bindparam("before"), _departures.c.erase_at.is_not(None)))
_TAKEN, _DUE = Statement(_ENDED), Statement(_ENDED.where(_IS_OPEN))
_ASK = Statement(update(_departures).where(_IS_IT, _IS_OPEN, _departures.c.erase_at.is_(None)))
_BEGIN = Statement(update(_departures).where(_IS_IT, _departures.c.began_at.is_(None)))
_ADOPT = insert_unless_present(_departures)
# A statement for each: every run of one sets the same columns.
_PLAN, _COUNT = Statement(update(_departures).where(_IS_IT)), Statement(update(_departures).where(_IS_IT))
_FINISH = Statement(update(_departures).where(and_(_IS_IT, _IS_OPEN)))

_Sums = dict[str, list[int]]


class ErasureLedger:
    """Read and change erasures through the journal's writer. Futures are as those of `TenantLedger`; every method may
    be repeated with the same arguments."""

    def __init__(self, writer: GroupCommitWriter, clock: Clock) -> None:
        self._submit = writer.submit
        self._clock = clock

    @submitted
    def erase(self, connection: Connection, name: str, keeps_tenant: bool) -> Erasure:
        """Ask for an erasure: of the tenant, which is deleted or gets a new identity, else of the last deleted one.
        Fails with NotFound UNKNOWN_TENANT."""
        note_change(connection)
        now = self._clock.wall()
        leave = renew_tenant if keeps_tenant else delete_tenant
        leave(connection, name, now)
        found = _OF_NAME.rows(connection, name=name)
        if not found:
            raise unknown_tenant(name)
        _ASK.change(connection, id=found[-1].tenant_id, erase_at=now)
        return _erasure_of(_find(connection, found[-1].tenant_id))

    @submitted
    def erasures(self, connection: Connection, name: str = "") -> list[Erasure]:
        """Return the erasures of the name, or all, in the order of deletion."""
        rows = _OF_NAME.rows(connection, name=name) if name else _ALL.rows(connection)
        return [*map(_erasure_of, rows)]

    @submitted
    def due(self, connection: Connection, deleted_before: float) -> list[str]:
        """Return the identities with data that were deleted before that time, or that an operator erases."""
        return _DUE.scalars(connection, before=deleted_before)

    @submitted
    def known(self, connection: Connection) -> frozenset[str]:
        """Return the identities of all erasures."""
        return frozenset(_KNOWN.scalars(connection))

    @submitted
    def take(self, connection: Connection, deleted_before: float, known: Collection[str]) -> list[dict[str, Any]]:
        """Return the departures that are due, except `known`, and note that their erasure runs, which no restoration
        may follow. One that another cell, with its journal in this ledger, has finished is due here too."""
        found = [one for one in _TAKEN.scalars(connection, before=deleted_before) if one not in known]
        for tenant_id in found:
            _BEGIN.change(connection, id=tenant_id, began_at=self._clock.wall())
        wanted = ("tenant_id", "tenant", "quota", "created_at", "revision", "deleted_at", "erase_at")
        rows = [_find(connection, tenant_id) for tenant_id in found]
        return [{name: getattr(row, name) for name in wanted} for row in rows]

    @submitted
    def adopt(self, connection: Connection, departures: Sequence[Mapping[str, Any]]) -> None:
        """Store departures of another ledger, to erase what this journal has. A stored one is not changed."""
        for one in departures:
            _ADOPT.first(connection, **one)

    @submitted
    def begin(self, connection: Connection, tenant_id: str) -> Erasure:
        """Note that the erasure runs, and return it."""
        _BEGIN.change(connection, id=tenant_id, began_at=self._clock.wall())
        return _erasure_of(_find(connection, tenant_id))

    @submitted
    def plan(self, connection: Connection, tenant_id: str, found: ErasedKind) -> bool:
        """Store the counts of objects about to be deleted, unless an earlier process did and was stopped; return
        whether there is anything to delete."""
        erasing = _read(_find(connection, tenant_id).erasing)
        if found.kind not in erasing and found.count:
            erasing[found.kind] = [found.count, found.size_bytes]
            _PLAN.change(connection, id=tenant_id, erasing=json.dumps(erasing))
        return found.kind in erasing

    @submitted
    def settle(self, connection: Connection, tenant_id: str, kind: str) -> None:
        """Count planned objects, which are deleted now."""
        row = _find(connection, tenant_id)
        erasing = _read(row.erasing)
        if kind in erasing:
            count, size_bytes = erasing.pop(kind)
            add_erased(connection, tenant_id, [ErasedKind(kind, count, size_bytes)])
            _PLAN.change(connection, id=tenant_id, erasing=json.dumps(erasing))

    @submitted
    def replace(self, connection: Connection, tenant_id: str, kinds: Sequence[ErasedKind]) -> None:
        """Set the sums that another service counts."""
        erased = _read(_find(connection, tenant_id).erased)
        _write(connection, tenant_id, {**erased, **{one.kind: [one.count, one.size_bytes] for one in kinds}})

    @submitted
    def finish(self, connection: Connection, tenant_id: str, finished_at: float, receipt: str) -> bool:
        """Record that nothing is left, and the receipt; False if that was recorded before."""
        quota = json.dumps(to_json(TenantQuota()), separators=(",", ":"))
        return _FINISH.change(connection, id=tenant_id, purged_at=finished_at, receipt=receipt, quota=quota) == 1


def add_erased(connection: Connection, tenant_id: str, kinds: Sequence[ErasedKind]) -> None:
    """Add to the counts of an erasure, in the transaction that deletes."""
    erased = _read(_find(connection, tenant_id).erased)
    for one in kinds:
        count, size_bytes = erased.get(one.kind, (0, 0))
        erased[one.kind] = [count + one.count, size_bytes + one.size_bytes]
    _write(connection, tenant_id, erased)


def _find(connection: Connection, tenant_id: str) -> Any:
    (row,) = _ONE.rows(connection, id=tenant_id)
    return row


def _write(connection: Connection, tenant_id: str, erased: Mapping[str, list[int]]) -> None:
    _COUNT.change(connection, id=tenant_id, erased=json.dumps(erased))


def _read(text: str) -> _Sums:
    found: _Sums = json.loads(text)
    return found


def _erasure_of(row: Any) -> Erasure:
    done, runs = row.purged_at is not None, row.began_at is not None
    return Erasure(
        row.tenant,
        row.tenant_id,
        ErasureState.DONE if done else ErasureState.RUNNING if runs else ErasureState.WAITING,
        row.deleted_at,
        row.began_at,
        row.purged_at,
        tuple(ErasedKind(kind, *sums) for kind, sums in sorted(_read(row.erased).items())),
        row.receipt or "",
    )
