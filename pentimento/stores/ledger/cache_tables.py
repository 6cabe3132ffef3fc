"""The tables of the gateway's ledger, and the migrations that make them.

grant    open (entry_id NULL) -> committed; expired ones and released ones are deleted
object   granted -> held by an entry -> doomed -> gone; a row outlives its object, never the other way round
entry    live (in the index or not yet) -> doomed -> gone from the index, then from here
"""

from sqlalchemy import BigInteger, Column, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

# One row.
state = Table(
    "cache_state",
    _METADATA,
    Column("singleton", BigInteger, primary_key=True),
    # Part of every object key, so that two caches in one object store never sweep each other.
    Column("cache_id", Text, nullable=False),
    Column("encoder_digest", Text),
    Column("dimension_count", BigInteger),
    # Orders the entries by age, whatever the clock does.
    Column("sequence", BigInteger, nullable=False),
    Column("entry_count", BigInteger, nullable=False),
    Column("object_count", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
)

grants = Table(
    "cache_grants",
    _METADATA,
    Column("grant_id", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("scope_digest", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("entry_id", Text),
)

entries = Table(
    "cache_entries",
    _METADATA,
    Column("entry_id", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    # Whose it is, also in the shared pool; empty where that was not noted.
    Column("tenant", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("ancestor_depth", BigInteger, nullable=False),
    Column("text_vector", LargeBinary, nullable=False),
    Column("image_vector", LargeBinary),
    Column("object_count", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # 1 once the index holds it.
    Column("indexed", BigInteger, nullable=False),
    Column("doomed_at", Double),
)

objects = Table(
    "cache_objects",
    _METADATA,
    Column("key", Text, primary_key=True),
    Column("grant_id", Text, nullable=False),
    # NULL for the final image.
    Column("resume_step", BigInteger),
    Column("entry_id", Text),
    # Under which it may be found; empty until it is held.
    Column("compatibility_key", Text, nullable=False),
    Column("sigma", Double),
    Column("digest", Text),
    Column("size_bytes", BigInteger),
    # When it may be deleted from the object store; NULL while it is granted or held.
    Column("delete_after", Double),
)

MIGRATIONS = (
    Migration(
        1,
        (
            """CREATE TABLE cache_state (
                singleton BIGINT PRIMARY KEY,
                cache_id TEXT NOT NULL,
                encoder_digest TEXT,
                dimension_count BIGINT,
                sequence BIGINT NOT NULL,
                entry_count BIGINT NOT NULL,
                object_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL
            )""",
            """CREATE TABLE cache_grants (
                grant_id TEXT PRIMARY KEY,
                pool TEXT NOT NULL,
                tenant TEXT NOT NULL,
                compatibility_key TEXT NOT NULL,
                request_id TEXT NOT NULL,
                fencing_token BIGINT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                entry_id TEXT
            )""",
            "CREATE INDEX cache_grants_expiry ON cache_grants (expires_at)",
            """CREATE TABLE cache_entries (
                entry_id TEXT PRIMARY KEY,
                pool TEXT NOT NULL,
                compatibility_key TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                sequence BIGINT NOT NULL,
                ancestor_depth BIGINT NOT NULL,
                text_vector {blob} NOT NULL,
                image_vector {blob},
                object_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL,
                indexed BIGINT NOT NULL,
                doomed_at DOUBLE PRECISION
            )""",
            "CREATE INDEX cache_entries_age ON cache_entries (sequence) WHERE doomed_at IS NULL",
            "CREATE INDEX cache_entries_unindexed ON cache_entries (sequence) WHERE indexed = 0 AND doomed_at IS NULL",
            "CREATE INDEX cache_entries_doomed ON cache_entries (doomed_at) WHERE doomed_at IS NOT NULL",
            """CREATE TABLE cache_objects (
                key TEXT PRIMARY KEY,
                grant_id TEXT NOT NULL,
                resume_step BIGINT,
                entry_id TEXT,
                sigma DOUBLE PRECISION,
                digest TEXT,
                size_bytes BIGINT,
                delete_after DOUBLE PRECISION
            )""",
            "CREATE INDEX cache_objects_grant ON cache_objects (grant_id)",
            "CREATE INDEX cache_objects_entry ON cache_objects (entry_id)",
            "CREATE INDEX cache_objects_doomed ON cache_objects (delete_after) WHERE delete_after IS NOT NULL",
        ),
    ),
    Migration(
        2,
        (
            "ALTER TABLE cache_entries ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
            "UPDATE cache_entries SET tenant = pool WHERE pool <> '*shared*'",
            """UPDATE cache_entries SET tenant = COALESCE((
                SELECT tenant FROM cache_grants WHERE cache_grants.entry_id = cache_entries.entry_id), '')
                WHERE pool = '*shared*'""",
            "CREATE INDEX cache_entries_tenant ON cache_entries (tenant, sequence, size_bytes) WHERE doomed_at IS NULL",
        ),
    ),
    Migration(
        3,
        (
            "ALTER TABLE cache_grants RENAME COLUMN compatibility_key TO scope_digest",
            "ALTER TABLE cache_objects ADD COLUMN compatibility_key TEXT NOT NULL DEFAULT ''",
            # An entry's key was for latents and image alike, and of another format: it would never be found again.
            "UPDATE cache_objects SET delete_after = 0 WHERE delete_after IS NULL AND entry_id IS NOT NULL",
            "UPDATE cache_entries SET doomed_at = created_at WHERE doomed_at IS NULL",
            "UPDATE cache_state SET entry_count = 0, object_count = 0, size_bytes = 0",
            "ALTER TABLE cache_entries DROP COLUMN compatibility_key",
        ),
    ),
)
