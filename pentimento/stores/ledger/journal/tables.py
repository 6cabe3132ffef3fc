"""Define the journal's tables and their migrations."""

from sqlalchemy import BigInteger, Double, ForeignKeyConstraint, LargeBinary, MetaData, Table, Text, UniqueConstraint

from pentimento.stores.ledger.columns import index, keys, optional, present
from pentimento.stores.ledger.migrations import Schema

_METADATA = MetaData()


def _of_request() -> ForeignKeyConstraint:
    """Delete the rows with their request."""
    return ForeignKeyConstraint(["request_id"], ["journal_requests.request_id"], ondelete="CASCADE")


# `body_format` is that of `body`; only the journal's users interpret it. `route` is that of the newest routed stage of
# the cascade. The newest attempt is repeated here so that one UPDATE compares and sets. `detached`: 1 if the request
# continues without listeners. `accepted_counted_s`: the acceptance by the journal's own time; NULL in rows of earlier
# versions.
requests = Table(
    "journal_requests",
    _METADATA,
    *keys(request_id=Text),
    *present(tenant=Text),
    *optional(idempotency_key=Text),
    *present(body_format=BigInteger, body=LargeBinary, body_hash=Text, accepted_at=Double),
    *optional(deadline_at=Double),
    *present(frontdoor_id=Text, frontdoor_epoch=BigInteger, state=Text),
    *optional(route=LargeBinary),
    *present(cascade_stage=BigInteger, newest_token=BigInteger, newest_epoch=BigInteger, attempt_count=BigInteger),
    *optional(image_key=Text, image_digest=Text, image_size_bytes=BigInteger, image_format=Text),
    *optional(width_px=BigInteger, height_px=BigInteger, provenance=LargeBinary),
    *present(error_reason=Text, error_message=Text),
    *optional(finished_at=Double),
    *present(detached=BigInteger),
    *optional(accepted_counted_s=Double),
    UniqueConstraint("tenant", "idempotency_key"),
    index("journal_unfinished", "accepted_at", where="finished_at IS NULL"),
    index("journal_finished", "finished_at", where="finished_at IS NOT NULL"),
    index("journal_kept", "tenant", "finished_at", where="finished_at IS NOT NULL"),
    index("journal_results", "image_key", where="image_key IS NOT NULL"),
    index("journal_listed", "tenant", "accepted_at", "request_id"),
    # Every start sums each tenant's images. The index has the key for SQLite, which would otherwise read each row for
    # it.
    index(
        "journal_pictures",
        *("tenant", "image_size_bytes", "image_key"),
        where="image_key IS NOT NULL AND image_key <> ''",
    ),
)

# `handed_picture`: its input from the stage before; only the journal's users interpret it.
attempts = Table(
    "journal_attempts",
    _METADATA,
    *keys(request_id=Text, fencing_token=BigInteger),
    *present(attempt_number=BigInteger, frontdoor_id=Text, frontdoor_epoch=BigInteger, worker_id=Text),
    *present(started_at=Double, cascade_stage=BigInteger),
    *optional(handed_picture=LargeBinary),
    _of_request(),
)

# One row each. The holder of an epoch beats as long as it runs. `journal_id` distinguishes this journal from every
# other; '' until it is first opened. The last columns are the journal's own time at the last beat, and the holder's
# clocks then.
epoch = Table(
    "journal_epoch",
    _METADATA,
    *keys(singleton=BigInteger),
    *present(epoch=BigInteger, frontdoor_id=Text, beat=BigInteger, journal_id=Text),
    *present(counted_s=Double, wall_s=Double, boot_s=Double, boot_id=Text),
)
plan = Table("journal_plan", _METADATA, *keys(singleton=BigInteger), *present(plan=LargeBinary))

# Objects that wait until the object store is available again.
spool = Table(
    "journal_spool",
    _METADATA,
    *keys(key=Text),
    *present(tenant=Text, digest=Text, size_bytes=BigInteger, data=LargeBinary),
)

# Requests that can be replayed until a time, and their inputs, each at a place of the spec ("init_image.image").
pins = Table(
    "journal_pins",
    _METADATA,
    *keys(request_id=Text),
    *present(tenant=Text, expires_at=Double, size_bytes=BigInteger),
    _of_request(),
    index("journal_pins_tenant", "tenant", "expires_at", "size_bytes"),
)
pinned_inputs = Table(
    "journal_pinned_inputs",
    _METADATA,
    *keys(request_id=Text, place=Text),
    *present(key=Text, digest=Text, size_bytes=BigInteger),
    ForeignKeyConstraint(["request_id"], ["journal_pins.request_id"], ondelete="CASCADE"),
    index("journal_pinned_keys", "key"),
)

# Receivers of requests' ends. `next_at` counts from the end on. If the requests from `request_id` to `last_id` are one
# job, all `request_count` must end, and are reported as `told_id`; both ids are '' for a request that is a whole job.
webhooks = Table(
    "journal_webhooks",
    _METADATA,
    *keys(request_id=Text),
    *present(told_id=Text, last_id=Text, request_count=BigInteger, url=Text),
    *present(state=Text, try_count=BigInteger, next_at=Double, error=Text),
    _of_request(),
    index("journal_webhooks_pending", "next_at", where="state = 'pending'"),
)

_FIRST_EPOCH = {
    **{"singleton": 1, "epoch": 0, "frontdoor_id": "", "beat": 0, "journal_id": ""},
    **{"counted_s": 0.0, "wall_s": 0.0, "boot_s": 0.0, "boot_id": ""},
}
SCHEMA = Schema("journal", 12, _METADATA, {epoch: _FIRST_EPOCH})
