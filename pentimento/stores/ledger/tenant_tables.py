"""Define the tables of tenants, their keys and their usage, and their migrations."""

from sqlalchemy import BigInteger, Column, Double, MetaData, Table, Text

from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

# One row: the revision differs after every change of tenants or keys.
book = Table(
    "tenant_book",
    _METADATA,
    Column("singleton", BigInteger, primary_key=True),
    Column("revision", BigInteger, nullable=False),
)
tenants = Table(
    "tenants",
    _METADATA,
    Column("tenant", Text, primary_key=True),
    # A TenantQuota as JSON.
    Column("quota", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # Keys requests, images and cache entries.
    Column("tenant_id", Text, nullable=False),
)
# Deleted tenants, for ever: an identity is never reused. `purged_at`: when only usage was left.
departures = Table(
    "tenant_departures",
    _METADATA,
    Column("tenant_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("quota", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("deleted_at", Double, nullable=False),
    Column("purged_at", Double),
)
# A key's secret is not stored: `digest` is the SHA-256 of 256 random bits and the key's id.
keys = Table(
    "tenant_keys",
    _METADATA,
    Column("key_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)
usage = Table(
    "tenant_usage",
    _METADATA,
    Column("tenant", Text, primary_key=True),
    Column("hour_at", BigInteger, primary_key=True),
    Column("counter", Text, primary_key=True),
    Column("amount", Double, nullable=False),
)

MIGRATIONS = (
    Migration(
        1,
        (
            "CREATE TABLE tenant_book (singleton BIGINT PRIMARY KEY, revision BIGINT NOT NULL)",
            "INSERT INTO tenant_book (singleton, revision) VALUES (1, 1)",
            """CREATE TABLE tenants (
                tenant TEXT PRIMARY KEY,
                quota TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                revision BIGINT NOT NULL
            )""",
            """CREATE TABLE tenant_keys (
                key_id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
                digest TEXT NOT NULL UNIQUE,
                created_at DOUBLE PRECISION NOT NULL,
                expires_at DOUBLE PRECISION,
                revoked_at DOUBLE PRECISION
            )""",
            "CREATE INDEX tenant_keys_of ON tenant_keys (tenant, created_at)",
            """CREATE TABLE tenant_usage (
                tenant TEXT NOT NULL,
                hour_at BIGINT NOT NULL,
                counter TEXT NOT NULL,
                amount DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (tenant, hour_at, counter)
            )""",
            "CREATE INDEX tenant_usage_hours ON tenant_usage (hour_at)",
        ),
    ),
    Migration(
        2,
        (
            "ALTER TABLE tenants ADD COLUMN tenant_id TEXT NOT NULL DEFAULT ''",
            "UPDATE tenants SET tenant_id = tenant",
            """CREATE TABLE tenant_departures (
                tenant_id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                quota TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                revision BIGINT NOT NULL,
                deleted_at DOUBLE PRECISION NOT NULL,
                purged_at DOUBLE PRECISION
            )""",
            "CREATE INDEX tenant_departures_name ON tenant_departures (tenant, deleted_at)",
        ),
    ),
)
