"""Define the journal's tables and their migrations."""

from sqlalchemy import BigInteger, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.columns import keys, optional, present
from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

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
)

# `handed_picture`: its input from the stage before; only the journal's users interpret it.
attempts = Table(
    "journal_attempts",
    _METADATA,
    *keys(request_id=Text, fencing_token=BigInteger),
    *present(attempt_number=BigInteger, frontdoor_id=Text, frontdoor_epoch=BigInteger, worker_id=Text),
    *present(started_at=Double, cascade_stage=BigInteger),
    *optional(handed_picture=LargeBinary),
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
    "journal_pins", _METADATA, *keys(request_id=Text), *present(tenant=Text, expires_at=Double, size_bytes=BigInteger)
)
pinned_inputs = Table(
    "journal_pinned_inputs",
    _METADATA,
    *keys(request_id=Text, place=Text),
    *present(key=Text, digest=Text, size_bytes=BigInteger),
)

# Receivers of requests' ends. `next_at` counts from the end on. If the requests from `request_id` to `last_id` are one
# job, all `request_count` must end, and are reported as `told_id`; both ids are '' for a request that is a whole job.
webhooks = Table(
    "journal_webhooks",
    _METADATA,
    *keys(request_id=Text),
    *present(told_id=Text, last_id=Text, request_count=BigInteger, url=Text),
    *present(state=Text, try_count=BigInteger, next_at=Double, error=Text),
)

MIGRATIONS = (
    Migration(
        1,
        (
            """CREATE TABLE journal_requests (
                request_id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                idempotency_key TEXT,
                body {blob} NOT NULL,
                body_hash TEXT NOT NULL,
                accepted_at DOUBLE PRECISION NOT NULL,
                deadline_at DOUBLE PRECISION,
                frontdoor_id TEXT NOT NULL,
                frontdoor_epoch BIGINT NOT NULL,
                state TEXT NOT NULL,
                route {blob},
                newest_token BIGINT NOT NULL,
                newest_epoch BIGINT NOT NULL,
                attempt_count BIGINT NOT NULL,
                image_key TEXT,
                image_digest TEXT,
                image_size_bytes BIGINT,
                image_format TEXT,
                width_px BIGINT,
                height_px BIGINT,
                provenance {blob},
                error_reason TEXT NOT NULL,
                error_message TEXT NOT NULL,
                finished_at DOUBLE PRECISION,
                UNIQUE (tenant, idempotency_key)
            )""",
            "CREATE INDEX journal_unfinished ON journal_requests (accepted_at) WHERE finished_at IS NULL",
            "CREATE INDEX journal_finished ON journal_requests (finished_at) WHERE finished_at IS NOT NULL",
            """CREATE TABLE journal_attempts (
                request_id TEXT NOT NULL REFERENCES journal_requests (request_id) ON DELETE CASCADE,
                fencing_token BIGINT NOT NULL,
                attempt_number BIGINT NOT NULL,
                frontdoor_id TEXT NOT NULL,
                frontdoor_epoch BIGINT NOT NULL,
                worker_id TEXT NOT NULL,
                started_at DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (request_id, fencing_token)
            )""",
            """CREATE TABLE journal_epoch (
                singleton BIGINT PRIMARY KEY,
                epoch BIGINT NOT NULL,
                frontdoor_id TEXT NOT NULL
            )""",
            "INSERT INTO journal_epoch (singleton, epoch, frontdoor_id) VALUES (1, 0, '')",
            "CREATE TABLE journal_plan (singleton BIGINT PRIMARY KEY, plan {blob} NOT NULL)",
        ),
    ),
    Migration(
        2,
        (
            "ALTER TABLE journal_requests ADD COLUMN cascade_stage BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE journal_attempts ADD COLUMN cascade_stage BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE journal_epoch ADD COLUMN beat BIGINT NOT NULL DEFAULT 0",
        ),
    ),
    Migration(3, ("ALTER TABLE journal_requests ADD COLUMN body_format BIGINT NOT NULL DEFAULT 0",)),
    Migration(
        4,
        (
            """CREATE TABLE journal_spool (
                key TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                digest TEXT NOT NULL,
                size_bytes BIGINT NOT NULL,
                data {blob} NOT NULL
            )""",
            "CREATE INDEX journal_kept ON journal_requests (tenant, finished_at) WHERE finished_at IS NOT NULL",
            "CREATE INDEX journal_results ON journal_requests (image_key) WHERE image_key IS NOT NULL",
        ),
    ),
    Migration(5, ("ALTER TABLE journal_epoch ADD COLUMN journal_id TEXT NOT NULL DEFAULT ''",)),
    Migration(
        6,
        (
            """CREATE TABLE journal_pins (
                request_id TEXT PRIMARY KEY REFERENCES journal_requests (request_id) ON DELETE CASCADE,
                tenant TEXT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                size_bytes BIGINT NOT NULL
            )""",
            "CREATE INDEX journal_pins_tenant ON journal_pins (tenant, expires_at, size_bytes)",
            """CREATE TABLE journal_pinned_inputs (
                request_id TEXT NOT NULL REFERENCES journal_pins (request_id) ON DELETE CASCADE,
                place TEXT NOT NULL,
                key TEXT NOT NULL,
                digest TEXT NOT NULL,
                size_bytes BIGINT NOT NULL,
                PRIMARY KEY (request_id, place)
            )""",
            "CREATE INDEX journal_pinned_keys ON journal_pinned_inputs (key)",
        ),
    ),
    Migration(
        7,
        (
            "ALTER TABLE journal_requests ADD COLUMN detached BIGINT NOT NULL DEFAULT 0",
            "CREATE INDEX journal_listed ON journal_requests (tenant, accepted_at, request_id)",
            """CREATE TABLE journal_webhooks (
                request_id TEXT PRIMARY KEY REFERENCES journal_requests (request_id) ON DELETE CASCADE,
                url TEXT NOT NULL,
                state TEXT NOT NULL,
                try_count BIGINT NOT NULL,
                next_at DOUBLE PRECISION NOT NULL,
                error TEXT NOT NULL
            )""",
            "CREATE INDEX journal_webhooks_pending ON journal_webhooks (next_at) WHERE state = 'pending'",
        ),
    ),
    Migration(
        8,
        (
            "ALTER TABLE journal_webhooks ADD COLUMN told_id TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE journal_webhooks ADD COLUMN last_id TEXT NOT NULL DEFAULT ''",
        ),
    ),
    Migration(9, ("ALTER TABLE journal_webhooks ADD COLUMN request_count BIGINT NOT NULL DEFAULT 0",)),
    Migration(10, ("ALTER TABLE journal_attempts ADD COLUMN handed_picture {blob}",)),
    # Every start sums each tenant's images. The index has the key for SQLite, which would otherwise read each row for
    # it.
    Migration(
        11,
        (
            """CREATE INDEX journal_pictures ON journal_requests (tenant, image_size_bytes, image_key)
                WHERE image_key IS NOT NULL AND image_key <> ''""",
        ),
    ),
    Migration(
        12,
        (
            "ALTER TABLE journal_requests ADD COLUMN accepted_counted_s DOUBLE PRECISION",
            "ALTER TABLE journal_epoch ADD COLUMN counted_s DOUBLE PRECISION NOT NULL DEFAULT 0",
            "ALTER TABLE journal_epoch ADD COLUMN wall_s DOUBLE PRECISION NOT NULL DEFAULT 0",
            "ALTER TABLE journal_epoch ADD COLUMN boot_s DOUBLE PRECISION NOT NULL DEFAULT 0",
            "ALTER TABLE journal_epoch ADD COLUMN boot_id TEXT NOT NULL DEFAULT ''",
        ),
    ),
)
