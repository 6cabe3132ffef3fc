"""Define the journal's tables and their migrations."""

from sqlalchemy import BigInteger, Column, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

requests = Table(
    "journal_requests",
    _METADATA,
    Column("request_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("idempotency_key", Text),
    # Format of `body`; only the journal's users interpret it.
    Column("body_format", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("body_hash", Text, nullable=False),
    Column("accepted_at", Double, nullable=False),
    Column("deadline_at", Double),
    Column("frontdoor_id", Text, nullable=False),
    Column("frontdoor_epoch", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    # The route of the newest routed stage of the cascade.
    Column("route", LargeBinary),
    Column("cascade_stage", BigInteger, nullable=False),
    # The newest attempt, repeated here so that one UPDATE compares and sets.
    Column("newest_token", BigInteger, nullable=False),
    Column("newest_epoch", BigInteger, nullable=False),
    Column("attempt_count", BigInteger, nullable=False),
    Column("image_key", Text),
    Column("image_digest", Text),
    Column("image_size_bytes", BigInteger),
    Column("image_format", Text),
    Column("width_px", BigInteger),
    Column("height_px", BigInteger),
    Column("provenance", LargeBinary),
    Column("error_reason", Text, nullable=False),
    Column("error_message", Text, nullable=False),
    Column("finished_at", Double),
    # 1: the request continues without listeners.
    Column("detached", BigInteger, nullable=False),
    # The acceptance by the journal's own time; NULL in rows of earlier versions.
    Column("accepted_counted_s", Double),
)

attempts = Table(
    "journal_attempts",
    _METADATA,
    Column("request_id", Text, primary_key=True),
    Column("fencing_token", BigInteger, primary_key=True),
    Column("attempt_number", BigInteger, nullable=False),
    Column("frontdoor_id", Text, nullable=False),
    Column("frontdoor_epoch", BigInteger, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("cascade_stage", BigInteger, nullable=False),
    # Its input from the stage before; only the journal's users interpret it.
    Column("handed_picture", LargeBinary),
)

# One row each. The holder of an epoch beats as long as it runs.
epoch = Table(
    "journal_epoch",
    _METADATA,
    Column("singleton", BigInteger, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("frontdoor_id", Text, nullable=False),
    Column("beat", BigInteger, nullable=False),
    # Distinguishes this journal from every other; '' until it is first opened.
    Column("journal_id", Text, nullable=False),
    # The journal's own time at the last beat, and the holder's clocks then.
    Column("counted_s", Double, nullable=False),
    Column("wall_s", Double, nullable=False),
    Column("boot_s", Double, nullable=False),
    Column("boot_id", Text, nullable=False),
)
plan = Table(
    "journal_plan",
    _METADATA,
    Column("singleton", BigInteger, primary_key=True),
    Column("plan", LargeBinary, nullable=False),
)

# Objects that wait until the object store is available again.
spool = Table(
    "journal_spool",
    _METADATA,
    Column("key", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# Requests that can be replayed until a time, and their inputs.
pins = Table(
    "journal_pins",
    _METADATA,
    Column("request_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
)
pinned_inputs = Table(
    "journal_pinned_inputs",
    _METADATA,
    Column("request_id", Text, primary_key=True),
    # In the spec: "init_image.image".
    Column("place", Text, primary_key=True),
    Column("key", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
)

# Receivers of requests' ends. `next_at` counts from the end on. If the requests from `request_id` to `last_id` are one
# job, all `request_count` must end, and are reported as `told_id`; both ids are '' for a request that is a whole job.
webhooks = Table(
    "journal_webhooks",
    _METADATA,
    Column("request_id", Text, primary_key=True),
    Column("told_id", Text, nullable=False),
    Column("last_id", Text, nullable=False),
    Column("request_count", BigInteger, nullable=False),
    Column("url", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("try_count", BigInteger, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("error", Text, nullable=False),
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
