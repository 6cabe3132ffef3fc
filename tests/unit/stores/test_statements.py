"""Statements that the driver runs: changes and rows, and errors of the domain."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, Connection, Engine, LargeBinary, MetaData, Table, Text, bindparam, update
from sqlalchemy.exc import OperationalError

from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present, run_by_driver

_METADATA = MetaData()
_PARTS = Table(
    "parts",
    _METADATA,
    Column("name", Text, primary_key=True),
    Column("count", BigInteger, nullable=False),
    Column("data", LargeBinary),
)
ADD = insert_unless_present(_PARTS)
_IS_SMALL = (_PARTS.c.name == bindparam("id"), _PARTS.c.count < 5)
RAISE = Statement(update(_PARTS).where(*_IS_SMALL).values(count=_PARTS.c.count + 2))
READ = Statement(_PARTS.select().where(_PARTS.c.name == bindparam("id")))


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


def test_write_binds_values_and_constants(connection: Connection) -> None:
    assert ADD.first(connection, name="a", count=4, data=b"one") == ("a",)
    assert ADD.first(connection, name="a", count=1, data=None) is None

    assert RAISE.change(connection, data=b"two", id="a") == 1
    assert RAISE.change(connection, data=b"three", id="a") == 0
    assert READ.first(connection, id="a") == ("a", 6, b"two")


def test_write_is_undone_with_its_transaction(engine: Engine) -> None:
    with pytest.raises(RuntimeError), engine.begin() as connection:
        ADD.first(connection, name="a", count=4, data=None)
        raise RuntimeError("a defect")

    with engine.begin() as connection:
        assert READ.first(connection, id="a") is None


def test_write_error_hides_values(connection: Connection) -> None:
    with pytest.raises(Internal) as broken, typed_errors():
        ADD.first(connection, name="secret", count=None, data=None)
    with pytest.raises(InvalidArgument) as large, typed_errors():
        ADD.first(connection, name="secret", count=2**70, data=None)
    _METADATA.drop_all(connection)
    with pytest.raises(StoreUnavailable) as gone, typed_errors():
        READ.first(connection, id="secret")

    assert "IntegrityError" in broken.value.message
    assert "OperationalError" in gone.value.message
    assert not any("secret" in caught.value.message for caught in (broken, large, gone))


def test_write_behind_lock_is_operational_error(engine: Engine, tmp_path: Path) -> None:
    other = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite?timeout=0")

    with engine.begin(), pytest.raises(OperationalError), other.begin() as second:
        run_by_driver(second, "SELECT 1")


def test_read_has_named_columns_and_later_commits(engine: Engine) -> None:
    between = Statement(_PARTS.select().where(_PARTS.c.count.between(bindparam("least"), bindparam("most"))))
    assert between.rows(engine, most=5, least=1) == []
    with engine.begin() as connection:
        ADD.first(connection, name="a", count=4, data=b"one")

    (row,) = between.rows(engine, least=1, most=5)

    assert (row.name, row.count, row.data) == ("a", 4, b"one")


def test_read_error_hides_values(engine: Engine) -> None:
    _METADATA.drop_all(engine)

    with pytest.raises(StoreUnavailable) as caught:
        READ.rows(engine, id="secret")

    assert "OperationalError" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["sqlite:///{folder}/folder", "postgresql+psycopg://secret@/ledger?host={folder}"])
def test_read_without_connection_is_unavailable(url: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(StoreUnavailable) as caught:
        READ.rows(open_engine(url.format(folder=tmp_path)), id="a")

    assert caught.value.message == "ledger cannot be reached: OperationalError" + " (SQLITE_CANTOPEN)" * (
        "sqlite" in url
    )


def test_list_of_any_length_uses_index(engine: Engine) -> None:
    some = Statement(_PARTS.select().where(among(_PARTS.c.name, "names")).order_by(_PARTS.c.name))
    with engine.begin() as connection:
        ADD.each(connection, [{"name": str(number), "count": number, "data": None} for number in range(3)])
        text = some._in(engine.dialect, ()).text
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", ("[]",)).all()

    assert [row.count for row in some.rows(engine, names={"0", "2", "'"})] == [0, 2]
    assert some.rows(engine, names=()) == []
    assert len(some.rows(engine, names=[str(number) for number in range(100_000)])) == 3
    assert any("SEARCH parts USING INDEX" in row[3] for row in plan)
