"""Define the controller's tables and their migrations: the leader, the last plan, the registry of models."""

from sqlalchemy import BigInteger, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.columns import keys, present
from pentimento.stores.ledger.migrations import Schema

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

_FIRST_EPOCH = {"singleton": 1, "epoch": 0, "controller_id": "", "beat": 0}
SCHEMA = Schema("fleet", 1, _METADATA, {epoch: _FIRST_EPOCH})
