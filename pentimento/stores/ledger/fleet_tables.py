"""Define the controller's tables and their migrations: the leader, the last plan, the registry of models."""

from sqlalchemy import BigInteger, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.columns import keys, present
from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

# One row each. The holder of an epoch beats as long as it leads.
epoch = Table(
    "fleet_epoch",
    _METADATA,
    *keys(singleton=BigInteger),
    *present(epoch=BigInteger, controller_id=Text, beat=BigInteger),
)
plan = Table(
    "fleet_plan",
    _METADATA,
    *keys(singleton=BigInteger),
    *present(leader_epoch=BigInteger, sequence=BigInteger, plan=LargeBinary),
)

# Manual registrations: models, cascades, and other kinds. A name is only a key within its kind. `document` is a JSON
# object; the kind defines its contents.
registered = Table(
    "fleet_registered",
    _METADATA,
    *keys(kind=Text, name=Text),
    *present(digest=Text, document=Text, registered_at=Double),
)

MIGRATIONS = (
    Migration(
        1,
        (
            """CREATE TABLE fleet_epoch (
                singleton BIGINT PRIMARY KEY,
                epoch BIGINT NOT NULL,
                controller_id TEXT NOT NULL,
                beat BIGINT NOT NULL
            )""",
            "INSERT INTO fleet_epoch (singleton, epoch, controller_id, beat) VALUES (1, 0, '', 0)",
            """CREATE TABLE fleet_plan (
                singleton BIGINT PRIMARY KEY,
                leader_epoch BIGINT NOT NULL,
                sequence BIGINT NOT NULL,
                plan {blob} NOT NULL
            )""",
            """CREATE TABLE fleet_registered (
                kind TEXT NOT NULL,
                name TEXT NOT NULL,
                digest TEXT NOT NULL,
                document TEXT NOT NULL,
                registered_at DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (kind, name)
            )""",
        ),
    ),
)
