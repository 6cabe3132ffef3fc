"""The tables as statements know them are those that the migrations make."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect

from pentimento.stores.ledger import cache_tables, fleet_tables, journal_tables, tenant_tables
from pentimento.stores.ledger.migrations import Migration, migrate

LEDGERS = {
    "cache": (cache_tables._METADATA, cache_tables.MIGRATIONS),
    "fleet": (fleet_tables._METADATA, fleet_tables.MIGRATIONS),
    "journal": (journal_tables._METADATA, journal_tables.MIGRATIONS),
    "tenants": (tenant_tables._METADATA, tenant_tables.MIGRATIONS),
}


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("name", LEDGERS)
def test_columns_keys_and_what_may_be_empty_are_as_in_the_database(name: str, engine: Engine) -> None:
    metadata: MetaData
    migrations: tuple[Migration, ...]
    metadata, migrations = LEDGERS[name]
    migrate(engine, name, migrations)
    found = inspect(engine)

    for table in metadata.tables.values():
        key = set(found.get_pk_constraint(table.name)["constrained_columns"])
        columns = {column["name"]: column["nullable"] for column in found.get_columns(table.name)}
        assert {column.name for column in table.primary_key} == key, table.name
        assert {column.name for column in table.columns} == columns.keys(), table.name
        for column in table.columns:
            assert column.name in key or column.nullable == columns[column.name], (table.name, column.name)
