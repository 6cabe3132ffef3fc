"""A statement that the driver runs: its rows, and its errors as ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, bindparam, text

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.ledger.database import open_engine, typed_errors
from pentimento.stores.ledger.prepared_read import PreparedRead

_STATE = tables.state.c


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    open_cache_ledger(url).close()
    engine = open_engine(url)
    yield engine
    engine.dispose()


def read(engine: Engine) -> PreparedRead:
    is_between = _STATE.singleton.between(bindparam("least"), bindparam("most"))
    return PreparedRead(engine, tables.state.select().with_only_columns(_STATE.cache_id, _STATE.tick).where(is_between))


def test_rows_of_read_have_columns_as_attributes(engine: Engine) -> None:
    (row,) = read(engine).rows(most=5, least=1)

    assert (len(row.cache_id), row.tick) == (16, 0)
    assert read(engine).rows(least=5, most=1) == []


def test_rows_of_read_include_later_commits(engine: Engine) -> None:
    reading = read(engine)
    reading.rows(least=1, most=1)
    with engine.begin() as connection:
        connection.execute(tables.state.update().values(tick=7))

    assert reading.rows(least=1, most=1)[0].tick == 7


def test_read_error_hides_values(engine: Engine) -> None:
    reading = read(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE cache_state"))

    with pytest.raises(StoreUnavailable) as caught, typed_errors():
        reading.rows(least="secret", most=1)

    assert "OperationalError" in caught.value.message
    assert "secret" not in caught.value.message
