"""Define the tables of tenants, their keys and their usage, and their migrations."""

from sqlalchemy import BigInteger, Double, MetaData, Table, Text

from pentimento.stores.ledger.columns import keys, optional, present
from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

# One row: the revision differs after every change of tenants or keys.
book = Table("tenant_book", _METADATA, *keys(singleton=BigInteger), *present(revision=BigInteger))
# `quota` is a TenantQuota as JSON; `tenant_id` keys requests, images and cache entries.
tenants = Table(
    "tenants",
    _METADATA,
    *keys(tenant=Text),
    *present(quota=Text, created_at=Double, revision=BigInteger, tenant_id=Text),
)
# Deleted tenants, for ever: an identity is never reused. `purged_at`: when only usage was left.
departures = Table(
    "tenant_departures",
    _METADATA,
    *keys(tenant_id=Text),
    *present(tenant=Text, quota=Text, created_at=Double, revision=BigInteger, deleted_at=Double),
    *optional(purged_at=Double),
)
# A key's secret is not stored: `digest` is the SHA-256 of 256 random bits and the key's id.
keys_of_tenants = Table(
    "tenant_keys",
    _METADATA,
    *keys(key_id=Text),
    *present(tenant=Text, digest=Text, created_at=Double),
    *optional(expires_at=Double, revoked_at=Double),
)
usage = Table(
    "tenant_usage",
    _METADATA,
    *keys(tenant=Text, hour_at=BigInteger, counter=Text),
    *present(amount=Double),
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
