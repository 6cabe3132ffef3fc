"""What changes in the cache's ledger, each as one transaction's work."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from pentimento.domain.access import EvictionRule, Rank
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import cache_access as access
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_records import EncoderBinding, EntryCommit, GrantRecord

_entries = tables.entries
_grants = tables.grants
_objects = tables.objects
_state = tables.state

_HOLD = update(_objects).where(_objects.c.key == bindparam("held_key"))


def bind_encoder(connection: Connection, binding: EncoderBinding) -> EncoderBinding:
    """Bind the cache to an encoder if it is bound to none, and return the binding in force."""
    unbound = update(_state).where(_state.c.encoder_digest.is_(None))
    connection.execute(unbound.values(encoder_digest=binding.encoder_digest, dimension_count=binding.dimension_count))
    row = connection.execute(select(_state.c.encoder_digest, _state.c.dimension_count)).one()
    return EncoderBinding(row.encoder_digest, row.dimension_count)


def reserve(connection: Connection, grant: GrantRecord) -> None:
    """Insert a grant and its keys."""
    row = {name: getattr(grant, name) for name in _grants.c.keys() if name != "entry_id"}  # noqa: SIM118
    connection.execute(insert(_grants), row)
    keys = [
        {"key": each.key, "grant_id": grant.grant_id, "resume_step": each.resume_step, "compatibility_key": ""}
        for each in grant.keys
    ]
    if keys:
        connection.execute(insert(_objects), keys)


def commit(connection: Connection, commit: EntryCommit, rule: EvictionRule) -> str:
    """Turn a grant into a live entry, doom the keys not captured, and return the entry's id. `rule` ranks its items."""
    grant_id = commit.captured.grant_id
    claim = update(_grants).where(_grants.c.grant_id == grant_id, _grants.c.entry_id.is_(None))
    is_first = connection.execute(claim.values(entry_id=commit.entry_id)).rowcount == 1
    grant = connection.execute(select(_grants).where(_grants.c.grant_id == grant_id)).one_or_none()
    if grant is None:
        raise NotFound("GRANT_GONE", "the grant has expired, was released, or never was")
    _require_match(grant, commit)
    if is_first:
        held, rank = _hold_objects(connection, commit, rule)
        _insert_entry(connection, commit, held, rank)
    return str(grant.entry_id)


def release(connection: Connection, grant_ids: Sequence[str], delete_after: float) -> int:
    """Delete open grants, doom their objects, and return the number of grants."""
    is_open = _grants.c.entry_id.is_(None)
    released = list(
        connection.scalars(
            delete(_grants).where(_grants.c.grant_id.in_(grant_ids), is_open).returning(_grants.c.grant_id)
        )
    )
    doomed = update(_objects).where(_objects.c.grant_id.in_(released), _objects.c.delete_after.is_(None))
    connection.execute(doomed.values(delete_after=delete_after))
    return len(released)


def expire(connection: Connection, now: float) -> int:
    """Release the open grants that ran out, forget committed ones of that age, and return the number released."""
    is_over = _grants.c.expires_at <= now
    over = list(connection.scalars(select(_grants.c.grant_id).where(is_over, _grants.c.entry_id.is_(None))))
    connection.execute(delete(_grants).where(is_over, _grants.c.entry_id.is_not(None)))
    return release(connection, over, now)


def doom(connection: Connection, entry_ids: Sequence[str], now: float, delete_after: float) -> int:
    """Take entries out of service and return their number; their objects stay until `delete_after`."""
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


def _require_match(grant: Row[Any], commit: EntryCommit) -> None:
    for name in ("tenant", "pool", "scope_digest", "request_id", "fencing_token"):
        if getattr(grant, name) != getattr(commit, name):
            raise FailedPrecondition("GRANT_MISMATCH", f"the grant was made for another {name}")


def _hold_objects(
    connection: Connection, commit: EntryCommit, rule: EvictionRule
) -> tuple[list[ObjectReference], Rank]:
    """Give the captured objects to the entry and doom the rest of the grant's keys. The objects held, and the highest
    rank of them."""
    captured = commit.captured
    of_grant = _objects.c.grant_id == captured.grant_id
    wanted: list[tuple[ObjectReference, int | None, float | None]] = [
        (latent.object, latent.resume_step, latent.sigma) for latent in captured.latents
    ]
    if captured.image is not None:
        wanted.append((captured.image, None, None))
    granted = {
        (row.key, row.resume_step)
        for row in connection.execute(select(_objects.c.key, _objects.c.resume_step).where(of_grant))
    }
    named = [(reference.key, step) for reference, step, _ in wanted]
    if not named or len(set(named)) != len(named) or not set(named) <= granted:
        raise InvalidArgument.of("entries", "must be one or more of the grant's keys, each once and at its own step")
    # An image may save all steps of its run.
    saved = [(float(step or commit.step_count), reference.size_bytes) for reference, step, _ in wanted]
    records = access.new_records(connection, saved)
    ranks = [rule.rank(record) for record in records]
    kept = [access.columns(record, rank) for record, rank in zip(records, ranks, strict=True)]
    held = [_held(commit, *each) | columns for each, columns in zip(wanted, kept, strict=True)]
    connection.execute(_HOLD, held)
    rest = update(_objects).where(of_grant, _objects.c.entry_id.is_(None))
    connection.execute(rest.values(delete_after=commit.created_at))
    return [reference for reference, _, _ in wanted], max(ranks)


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


def _insert_entry(connection: Connection, commit: EntryCommit, held: Sequence[ObjectReference], rank: Rank) -> None:
    size_bytes = sum(reference.size_bytes for reference in held)
    add_to_totals(connection, 1, len(held), size_bytes)
    sequence = update(_state).values(sequence=_state.c.sequence + 1).returning(_state.c.sequence)
    row = {
        "entry_id": commit.entry_id,
        "pool": commit.pool,
        "tenant": commit.tenant,
        "request_id": commit.request_id,
        "created_at": commit.created_at,
        "sequence": connection.execute(sequence).scalar_one(),
        "ancestor_depth": commit.ancestor_depth,
        "text_vector": commit.text_vector,
        "image_vector": commit.image_vector,
        "object_count": len(held),
        "size_bytes": size_bytes,
        "rank_score": rank[0],
        "rank_tie": rank[1],
        "indexed": 0,
    }
    connection.execute(insert(_entries), row)


def add_to_totals(connection: Connection, entries: int, objects: int, size_bytes: int) -> None:
    """Add to the numbers of live entries and of objects held, and to their bytes."""
    connection.execute(
        update(_state).values(
            entry_count=_state.c.entry_count + entries,
            object_count=_state.c.object_count + objects,
            size_bytes=_state.c.size_bytes + size_bytes,
        )
    )
