"""Change the cache's ledger; each function is one transaction's work."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, insert, select, update

from pentimento.domain.access import EvictionRule
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import cache_access as access
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_records import EncoderBinding, EntryCommit, GrantRecord
from pentimento.stores.ledger.statements import Statement

_entries = tables.entries
_grants = tables.grants
_objects = tables.objects
_state = tables.state
_FORGOTTEN_AT_ONCE = 256

# Statements of every image are compiled once: to build a statement takes longer than to run it.
_ADD_GRANT = Statement(lambda _: insert(_grants))
_ADD_KEY = Statement(lambda _: insert(_objects))
# A commit must match its grant in these columns.
_MATCHED = ("tenant", "pool", "scope_digest", "request_id", "fencing_token")
_OF_GRANT = (*(_grants.c[name] for name in _MATCHED), _grants.c.entry_id)
_IS_GRANT, _IS_OPEN = _grants.c.grant_id == bindparam("id"), _grants.c.entry_id.is_(None)
_CLAIM = Statement(lambda _: update(_grants).where(_IS_GRANT, _IS_OPEN).returning(*_OF_GRANT))
_GRANT = Statement(lambda _: select(*_OF_GRANT).where(_IS_GRANT))
_DROP_GRANT = Statement(lambda _: delete(_grants).where(_IS_GRANT, _IS_OPEN))
_IS_OF_GRANT = _objects.c.grant_id == bindparam("id")
_KEYS_OF_GRANT = Statement(lambda _: select(_objects.c.key, _objects.c.resume_step).where(_IS_OF_GRANT))
_DOOM_KEYS = Statement(
    lambda _: update(_objects).where(_IS_OF_GRANT, _objects.c.entry_id.is_(None), _objects.c.delete_after.is_(None))
)
_HOLD = Statement(lambda _: update(_objects).where(_objects.c.key == bindparam("held_key")))
_COUNT_IN = Statement(
    lambda _: (
        update(_state)
        .values(
            tick=_state.c.tick + bindparam("added_objects"),
            sequence=_state.c.sequence + 1,
            entry_count=_state.c.entry_count + 1,
            object_count=_state.c.object_count + bindparam("added_objects"),
            size_bytes=_state.c.size_bytes + bindparam("added_bytes"),
        )
        .returning(_state.c.tick, _state.c.sequence)
    )
)
_ADD_ENTRY = Statement(lambda _: insert(_entries))


def bind_encoder(connection: Connection, binding: EncoderBinding) -> EncoderBinding:
    """Bind the cache to an encoder if it is bound to none, and return the binding in force."""
    unbound = update(_state).where(_state.c.encoder_digest.is_(None))
    connection.execute(unbound.values(encoder_digest=binding.encoder_digest, dimension_count=binding.dimension_count))
    row = connection.execute(select(_state.c.encoder_digest, _state.c.dimension_count)).one()
    return EncoderBinding(row.encoder_digest, row.dimension_count)


def reserve(connection: Connection, grant: GrantRecord) -> None:
    """Insert a grant and its keys."""
    of_grant: dict[str, Any] = {"grant_id": grant.grant_id, "compatibility_key": ""}
    keys = [of_grant | {"key": each.key, "resume_step": each.resume_step} for each in grant.keys]
    _ADD_GRANT.changed_count(connection, {name: value for name, value in vars(grant).items() if name != "keys"})
    _ADD_KEY.each(connection, keys)


def commit(
    connection: Connection, commit: EntryCommit, rule: EvictionRule, encoder: EncoderBinding | None = None
) -> str:
    """Turn a grant into a live entry, doom the keys not captured, and return the entry's id. `rule` ranks its items;
    `encoder`: of its vectors, if the cache may not be bound yet."""
    grant_id = commit.captured.grant_id
    claimed = _CLAIM.first(connection, {"id": grant_id, "entry_id": commit.entry_id})
    grant = claimed or _GRANT.first(connection, {"id": grant_id})
    if grant is None:
        raise NotFound("GRANT_GONE", "the grant has expired, was released, or never was")
    *made_for, entry_id = grant
    for name, value in zip(_MATCHED, made_for, strict=True):
        if value != getattr(commit, name):
            raise FailedPrecondition("GRANT_MISMATCH", f"the grant was made for another {name}")
    if encoder is not None and bind_encoder(connection, encoder) != encoder:
        raise InvalidArgument.of("encoder_digest", "must be the encoder of the cache; another needs its own cache")
    if claimed:
        _insert_entry(connection, commit, rule)
    return str(entry_id)


def release(connection: Connection, grant_ids: Sequence[str], delete_after: float) -> int:
    """Delete open grants, doom their objects, and return the number of grants."""
    released = [each for each in grant_ids if _DROP_GRANT.changed_count(connection, {"id": each})]
    _DOOM_KEYS.each(connection, [{"id": each, "delete_after": delete_after} for each in released])
    return len(released)


def expire(connection: Connection, now: float) -> int:
    """Release the expired open grants, delete committed ones of that age, and return the number released."""
    is_over = _grants.c.expires_at <= now
    over = list(connection.scalars(select(_grants.c.grant_id).where(is_over, _grants.c.entry_id.is_(None))))
    connection.execute(delete(_grants).where(is_over, _grants.c.entry_id.is_not(None)))
    return release(connection, over, now)


def doom(connection: Connection, entry_ids: Sequence[str], now: float, delete_after: float) -> int:
    """Take entries out of service and return their number; their objects stay until `delete_after`."""
    # As in a commit: first the lock of the one row, then the tenant's holding. The other order would deadlock.
    access.take_ticks(connection, 0)
    is_live = _entries.c.doomed_at.is_(None)
    statement = update(_entries).where(_entries.c.entry_id.in_(entry_ids), is_live).values(doomed_at=now)
    columns = (_entries.c.entry_id, _entries.c.object_count, _entries.c.size_bytes)
    rows = connection.execute(statement.returning(*columns)).all()
    if rows:
        ids = [row.entry_id for row in rows]
        connection.execute(update(_objects).where(_objects.c.entry_id.in_(ids)).values(delete_after=delete_after))
        add_to_totals(
            connection, -len(rows), -sum(row.object_count for row in rows), -sum(row.size_bytes for row in rows)
        )
    return len(rows)


def forget_tenant(connection: Connection, tenant: str, now: float) -> int:
    """Drop a tenant's bound, pins and open grants, doom some of its entries, and return the number doomed."""
    connection.execute(delete(tables.tenant_limits).where(tables.tenant_limits.c.tenant == tenant))
    connection.execute(delete(tables.pins).where(tables.pins.c.tenant == tenant))
    release(connection, list(connection.scalars(select(_grants.c.grant_id).where(_grants.c.tenant == tenant))), now)
    is_its = and_(_entries.c.tenant == tenant, _entries.c.doomed_at.is_(None))
    entries = connection.scalars(select(_entries.c.entry_id).where(is_its).limit(_FORGOTTEN_AT_ONCE))
    return doom(connection, list(entries), now, now)


def _held(commit: EntryCommit, reference: ObjectReference, step: int | None, sigma: float | None) -> dict[str, Any]:
    return {
        "held_key": reference.key,
        "entry_id": commit.entry_id,
        "tenant": commit.tenant,
        "compatibility_key": commit.compatibility_keys[step],
        "sigma": sigma,
        "digest": reference.digest,
        "size_bytes": reference.size_bytes,
    }


def _insert_entry(connection: Connection, commit: EntryCommit, rule: EvictionRule) -> None:
    """Make a live entry that holds the captured objects, and doom the rest of its grant's keys."""
    held = _captured(connection, commit)
    size_bytes = sum(reference.size_bytes for reference, _, _ in held)
    # Locks the row until the commit, as `take_ticks` does.
    ((tick, sequence),) = _COUNT_IN.rows(connection, {"added_objects": len(held), "added_bytes": size_bytes})
    # An image may save all steps of its run.
    saved = [(float(step or commit.step_count), reference.size_bytes) for reference, step, _ in held]
    records = access.new_records(tick - len(held) + 1, saved)
    ranks = [rule.rank(record) for record in records]
    kept = [access.columns(record, rank) for record, rank in zip(records, ranks, strict=True)]
    _HOLD.each(connection, [_held(commit, *each) | columns for each, columns in zip(held, kept, strict=True)])
    _DOOM_KEYS.changed_count(connection, {"id": commit.captured.grant_id, "delete_after": commit.created_at})
    score, tie = max(ranks)
    row = {
        "entry_id": commit.entry_id,
        "pool": commit.pool,
        "tenant": commit.tenant,
        "request_id": commit.request_id,
        "repeat_key": commit.repeat_key,
        "created_at": commit.created_at,
        "sequence": sequence,
        "ancestor_depth": commit.ancestor_depth,
        "text_vector": commit.text_vector,
        "image_vector": commit.image_vector,
        "object_count": len(held),
        "size_bytes": size_bytes,
        "rank_score": score,
        "rank_tie": tie,
        "indexed": 0,
    }
    _ADD_ENTRY.changed_count(connection, row)


def _captured(connection: Connection, commit: EntryCommit) -> list[tuple[ObjectReference, int | None, float | None]]:
    """Return the objects that the entry will hold, with step and sigma. Raises InvalidArgument if the grant names
    others."""
    captured = commit.captured
    wanted: list[tuple[ObjectReference, int | None, float | None]] = [
        (latent.object, latent.resume_step, latent.sigma) for latent in captured.latents
    ]
    if captured.image is not None:
        wanted.append((captured.image, None, None))
    granted = set(_KEYS_OF_GRANT.rows(connection, {"id": captured.grant_id}))
    named = [(reference.key, step) for reference, step, _ in wanted]
    if not named or len(set(named)) != len(named) or not set(named) <= granted:
        raise InvalidArgument.of("entries", "must be one or more of the grant's keys, each once and at its own step")
    return wanted


def add_to_totals(connection: Connection, entries: int, objects: int, size_bytes: int) -> None:
    """Add to the totals of live entries, held objects and their bytes."""
    connection.execute(
        update(_state).values(
            entry_count=_state.c.entry_count + entries,
            object_count=_state.c.object_count + objects,
            size_bytes=_state.c.size_bytes + size_bytes,
        )
    )
