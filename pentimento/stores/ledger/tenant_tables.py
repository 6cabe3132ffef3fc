"""Define the tables of tenants, their keys and their usage, and their migrations."""

from sqlalchemy import BigInteger, Double, ForeignKeyConstraint, MetaData, Table, Text, UniqueConstraint

from pentimento.stores.ledger.columns import defaulting, index, keys, optional, present
from pentimento.stores.ledger.migrations import Schema

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
# Deleted tenants, for ever: an identity is never reused. `purged_at`: when only usage was left. `erase_at`: when an
# operator ended the time of grace. `erased` and `erasing`: counts of deleted and of planned data, as JSON.
departures = Table(
    "tenant_departures",
    _METADATA,
    *keys(tenant_id=Text),
    *present(tenant=Text, quota=Text, created_at=Double, revision=BigInteger, deleted_at=Double),
    *optional(purged_at=Double),
    *optional(erase_at=Double, began_at=Double, receipt=Text),
    *defaulting("'{}'", erased=Text, erasing=Text),
    index("tenant_departures_name", "tenant", "deleted_at"),
)
# A key's secret is not stored: `digest` is the SHA-256 of 256 random bits and the key's id.
keys_of_tenants = Table(
    "tenant_keys",
    _METADATA,
    *keys(key_id=Text),
    *present(tenant=Text, digest=Text, created_at=Double),
    *optional(expires_at=Double, revoked_at=Double),
    UniqueConstraint("digest"),
    ForeignKeyConstraint(["tenant"], ["tenants.tenant"], ondelete="CASCADE"),
    index("tenant_keys_of", "tenant", "created_at"),
)
usage = Table(
    "tenant_usage",
    _METADATA,
    *keys(tenant=Text, hour_at=BigInteger, counter=Text),
    *present(amount=Double),
    index("tenant_usage_hours", "hour_at"),
)

_ERASURES = tuple(
    f"ALTER TABLE tenant_departures ADD COLUMN {column}"
    for column in (
        "erase_at DOUBLE PRECISION",
        "began_at DOUBLE PRECISION",
        "receipt TEXT",
        "erased TEXT DEFAULT '{}' NOT NULL",
        "erasing TEXT DEFAULT '{}' NOT NULL",
    )
)

SCHEMA = Schema("tenants", 2, _METADATA, {book: {"singleton": 1, "revision": 1}}, migrations=(_ERASURES,))
