"""Statements that the driver runs: changes and rows, and errors of the domain."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, Connection, Engine, LargeBinary, MetaData, Table, Text, bindparam, update
from sqlalchemy.exc import OperationalError

from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.database import insert_unless_present_in, open_engine, typed_errors
from pentimento.stores.ledger.statements import Statement, run_by_driver

_METADATA = MetaData()
_PARTS = Table(
    "parts",
    _METADATA,
    Column("name", Text, primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("data", LargeBinary),
)
ADD = Statement(lambda dialect: insert_unless_present_in(dialect, _PARTS))
_IS_SMALL = (_PARTS.c.name == bindparam("id"), _PARTS.c.count < 5)
RAISE = Statement(lambda _: update(_PARTS).where(*_IS_SMALL).values(count=_PARTS.c.count + 2))
READ = Statement(lambda _: _PARTS.select().where(_PARTS.c.name == bindparam("id")))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")
    _METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.begin() as connection:
        yield connection


def test_write_binds_values_beside_constants(connection: Connection) -> None:
    assert ADD.first(connection, {"name": "a", "count": 4, "data": b"one"}) == ("a",)
    assert ADD.first(connection, {"name": "a", "count": 1, "data": None}) is None

    assert RAISE.changed_count(connection, {"data": b"two", "id": "a"}) == 1
    assert RAISE.changed_count(connection, {"data": b"three", "id": "a"}) == 0
    assert READ.first(connection, {"id": "a"}) == ("a", 6, b"two")


def test_write_is_undone_with_its_transaction(engine: Engine) -> None:
    with pytest.raises(RuntimeError), engine.begin() as connection:
        ADD.first(connection, {"name": "a", "count": 4, "data": None})
        raise RuntimeError("a defect")

    with engine.begin() as connection:
        assert READ.first(connection, {"id": "a"}) is None


def test_write_error_hides_values(connection: Connection) -> None:
    with pytest.raises(Internal) as broken, typed_errors():
        ADD.first(connection, {"name": "secret", "count": None, "data": None})
    with pytest.raises(InvalidArgument) as large, typed_errors():
        ADD.first(connection, {"name": "secret", "count": 2**70, "data": None})
    _METADATA.drop_all(connection)
    with pytest.raises(StoreUnavailable) as gone, typed_errors():
        READ.first(connection, {"id": "secret"})

    assert "IntegrityError" in broken.value.message
    assert "OperationalError" in gone.value.message
    assert not any("secret" in caught.value.message for caught in (broken, large, gone))


def test_write_behind_lock_is_operational_error(engine: Engine, tmp_path: Path) -> None:
    other = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite?timeout=0")

    with engine.begin(), pytest.raises(OperationalError), other.begin() as second:
        run_by_driver(second, "SELECT 1", (), lambda cursor: None)


def test_read_has_named_columns_and_later_commits(engine: Engine) -> None:
    between = Statement(lambda _: _PARTS.select().where(_PARTS.c.count.between(bindparam("least"), bindparam("most"))))
    assert between.read(engine, most=5, least=1) == []
    with engine.begin() as connection:
        ADD.first(connection, {"name": "a", "count": 4, "data": b"one"})

    (row,) = between.read(engine, least=1, most=5)

    assert (row.name, row.count, row.data) == ("a", 4, b"one")


def test_read_error_hides_values(engine: Engine) -> None:
    _METADATA.drop_all(engine)

    with pytest.raises(StoreUnavailable) as caught, typed_errors():
        READ.read(engine, id="secret")

    assert "OperationalError" in caught.value.message
    assert "secret" not in caught.value.message
