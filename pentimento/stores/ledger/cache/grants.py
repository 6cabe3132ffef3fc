"""Turn grants into live entries, or release them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from pentimento.domain.access import EvictionRule
from pentimento.domain.embedding import Space
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.pins import CachePins
from pentimento.stores.ledger.cache.records import EncoderBinding, EntryCommit, GrantRecord
from pentimento.stores.ledger.cache.uses import CacheUses, columns, new_records
from pentimento.stores.ledger.statements import Source, Statement, among, insert_unless_present
from pentimento.stores.ledger.writer import submitted

_encoders = tables.encoders
_entries = tables.entries
_grants = tables.grants
_objects = tables.objects
_state = tables.state

_ADD_GRANT = Statement(insert(_grants))
_ADD_KEY = Statement(insert(_objects))
# A commit must match its grant in these columns.
_MATCHED = ("tenant", "pool", "scope_digest", "request_id", "fencing_token")
_OF_GRANT = (*(_grants.c[name] for name in _MATCHED), _grants.c.entry_id)
_IS_GRANT, _IS_OPEN = _grants.c.grant_id == bindparam("id"), _grants.c.entry_id.is_(None)
_CLAIM = Statement(update(_grants).where(_IS_GRANT, _IS_OPEN).returning(*_OF_GRANT))
_GRANT = Statement(select(*_OF_GRANT).where(_IS_GRANT))
_DROP_GRANT = Statement(delete(_grants).where(_IS_GRANT, _IS_OPEN))
_IS_OVER = _grants.c.expires_at <= bindparam("now")
_EXPIRED = Statement(select(_grants.c.grant_id).where(_IS_OVER, _IS_OPEN))
_DROP_COMMITTED = Statement(delete(_grants).where(_IS_OVER, ~_IS_OPEN))
_IS_OF_TENANT = _grants.c.tenant == bindparam("of_tenant")
_OPEN_COUNT = Statement(select(func.count()).select_from(_grants).where(_IS_OPEN, _IS_OF_TENANT))
_OF_TENANT = Statement(select(_grants.c.grant_id).where(_IS_OF_TENANT))
_IS_OF_GRANT = _objects.c.grant_id == bindparam("id")
_KEYS_OF_GRANT = Statement(select(_objects.c.key, _objects.c.resume_step).where(_IS_OF_GRANT))
_DOOM_KEYS = Statement(
    update(_objects).where(_IS_OF_GRANT, _objects.c.entry_id.is_(None), _objects.c.delete_after.is_(None))
)
_KNOWN_KEYS = Statement(select(_objects.c.key).where(among(_objects.c.key, "keys")))
_HOLD = Statement(update(_objects).where(_objects.c.key == bindparam("held_key")))
_COUNT_IN = Statement(
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
_ADD_ENTRY = Statement(insert(_entries))
# An entry takes these columns from its commit.
_COPIED = (
    *("entry_id", "pool", "tenant", "request_id", "repeat_key", "created_at", "ancestor_depth"),
    *("text_vector", "image_vector"),
)
_BIND_ENCODER = insert_unless_present(_encoders)
_BINDINGS = Statement(select(_encoders.c.encoder_digest, _encoders.c.dimension_count, _encoders.c.space))


class CacheGrants(CacheUses, CachePins):
    """Reserve keys, and make entries of the uploads under them."""

    @submitted
    def reserve(self, connection: Connection, grant: GrantRecord) -> None:
        """Store a grant. Its keys are known from here on, so an upload under them is never an orphan."""
        of_grant: dict[str, Any] = {"grant_id": grant.grant_id, "compatibility_key": ""}
        keys = [of_grant | {"key": each.key, "resume_step": each.resume_step} for each in grant.keys]
        _ADD_GRANT.change(connection, **{name: value for name, value in vars(grant).items() if name != "keys"})
        _ADD_KEY.each(connection, keys)

    @submitted
    def commit(self, connection: Connection, commit: EntryCommit, *encoders: EncoderBinding) -> str:
        """Turn a grant into a live entry and return its id, the first one when repeated. Keys not captured are doomed.
        `encoders`: of the entry's vectors in spaces that may not be bound yet: the first entry binds them.

        Fails with NotFound when the grant is missing, FailedPrecondition when it belongs to another attempt or scope,
        InvalidArgument when it does not cover the captured objects, or a space is bound to another encoder.
        """
        grant_id = commit.captured.grant_id
        claimed = _CLAIM.first(connection, id=grant_id, entry_id=commit.entry_id)
        grant = claimed or _GRANT.first(connection, id=grant_id)
        if grant is None:
            raise NotFound("GRANT_GONE", "the grant has expired, was released, or never was")
        for name in _MATCHED:
            if getattr(grant, name) != getattr(commit, name):
                raise FailedPrecondition("GRANT_MISMATCH", f"the grant was made for another {name}")
        for encoder in encoders:
            if (bound := bind_encoder(connection, encoder)) != encoder:
                raise InvalidArgument.of(f"{encoder.space.value}_embedding.encoder_digest", must_be_encoder(bound))
        if claimed:
            _insert_entry(connection, commit, self._rule)
        return str(grant.entry_id)

    @submitted
    def release(self, connection: Connection, grant_id: str) -> bool:
        """Release an open grant and doom its keys. False when it is missing or committed."""
        return release_grants(connection, [grant_id], self._clock.wall()) == 1

    @submitted
    def expire_grants(self, connection: Connection) -> int:
        """Release the expired open grants, delete committed ones of that age and ended pins, and return the number
        released."""
        now = self._clock.wall()
        self._let_go_of_ended_pins(connection, now)
        over = _EXPIRED.scalars(connection, now=now)
        _DROP_COMMITTED.change(connection, now=now)
        return release_grants(connection, over, now)

    def bindings(self) -> dict[Space, EncoderBinding]:
        """Return the encoder of each space that has one."""
        return {bound.space: bound for bound in _bindings(self._engine)}

    def binding(self, space: Space = Space.TEXT) -> EncoderBinding | None:
        """Return the encoder of a space; None before the first vector in it."""
        return self.bindings().get(space)

    def open_grant_count(self, tenant: str) -> int:
        """Return how many grants of the tenant are neither committed nor released."""
        return int(_OPEN_COUNT.scalar(self._engine, of_tenant=tenant))

    def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that are granted, held or doomed."""
        return set(_KNOWN_KEYS.scalars(self._engine, keys=keys))


def release_grants(connection: Connection, grant_ids: Sequence[str], delete_after: float) -> int:
    """Delete open grants, doom their objects, and return the number of grants."""
    released = [each for each in grant_ids if _DROP_GRANT.change(connection, id=each)]
    _DOOM_KEYS.each(connection, [{"id": each, "delete_after": delete_after} for each in released])
    return len(released)


def release_all(connection: Connection, tenant: str, delete_after: float) -> None:
    """Release a tenant's open grants."""
    release_grants(connection, _OF_TENANT.scalars(connection, of_tenant=tenant), delete_after)


def bind_encoder(connection: Connection, binding: EncoderBinding) -> EncoderBinding:
    """Bind a space to its encoder if it has none, and return the binding in force."""
    _BIND_ENCODER.first(connection, **{**vars(binding), "space": binding.space.value})
    return next(bound for bound in _bindings(connection) if bound.space is binding.space)


def must_be_encoder(bound: EncoderBinding) -> str:
    """Return what to answer to vectors of another encoder."""
    return (
        f"must be {bound.encoder_digest}, the encoder of the cache's {bound.space.value}s; another needs its own cache"
    )


def _bindings(source: Source) -> list[EncoderBinding]:
    return [EncoderBinding(digest, count, Space(space)) for digest, count, space in _BINDINGS.rows(source)]


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
    # Locks the row until the commit, as `lock` does.
    ((tick, sequence),) = _COUNT_IN.rows(connection, added_objects=len(held), added_bytes=size_bytes)
    # An image may save all steps of its run.
    saved = [(float(step or commit.step_count), reference.size_bytes) for reference, step, _ in held]
    records = new_records(tick - len(held) + 1, saved)
    ranks = [rule.rank(record) for record in records]
    kept = [columns(record, rank) for record, rank in zip(records, ranks, strict=True)]
    _HOLD.each(connection, [_held(commit, *each) | record for each, record in zip(held, kept, strict=True)])
    _DOOM_KEYS.change(connection, id=commit.captured.grant_id, delete_after=commit.created_at)
    score, tie = max(ranks)
    row = {
        **{name: getattr(commit, name) for name in _COPIED},
        **{"object_count": len(held), "size_bytes": size_bytes, "sequence": sequence},
        **{"rank_score": score, "rank_tie": tie, "indexed": 0},
    }
    _ADD_ENTRY.change(connection, **row)


def _captured(connection: Connection, commit: EntryCommit) -> list[tuple[ObjectReference, int | None, float | None]]:
    """Return the objects that the entry will hold, with step and sigma. Raises InvalidArgument if the grant names
    others."""
    captured = commit.captured
    wanted: list[tuple[ObjectReference, int | None, float | None]] = [
        (latent.object, latent.resume_step, latent.sigma) for latent in captured.latents
    ]
    if captured.image is not None:
        wanted.append((captured.image, None, None))
    granted = set(_KEYS_OF_GRANT.rows(connection, id=captured.grant_id))
    named = [(reference.key, step) for reference, step, _ in wanted]
    if not named or len(set(named)) != len(named) or not set(named) <= granted:
        raise InvalidArgument.of("entries", "must be one or more of the grant's keys, each once and at its own step")
    return wanted
