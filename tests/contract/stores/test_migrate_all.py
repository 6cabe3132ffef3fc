"""Test the command that migrates every ledger of a database before its services start."""

import sqlite3
from pathlib import Path

import pytest

from pentimento.stores.ledger.migrate_all import LEDGERS, main


def test_migrate_all_makes_the_tables_of_every_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"

    assert [main([url]), main([url])] == [0, 0]

    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        migrated = {name for (name,) in database.execute("SELECT component FROM schema_versions WHERE version > 0")}
    assert migrated == {*LEDGERS, "tenants"}
    assert capsys.readouterr().out.count("has this build's tables") == 2 * len(LEDGERS)


def test_migrate_all_of_cells_makes_the_tables_of_their_journals(tmp_path: Path) -> None:
    assert main([f"sqlite:///{tmp_path / name}.sqlite" for name in ("main", "cell")]) == 0

    with sqlite3.connect(tmp_path / "cell.sqlite") as database:
        migrated = {name for (name,) in database.execute("SELECT component FROM schema_versions WHERE version > 0")}
    assert migrated == {"journal", "tenants"}


def test_migrate_all_of_newer_tables_names_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ledger.sqlite"
    main([f"sqlite:///{file}"])
    with sqlite3.connect(file) as database:
        database.execute("UPDATE schema_versions SET version = 999 WHERE component = 'fleet'")

    assert main([f"sqlite:///{file}"]) == 1
    assert "fleet has schema version 999" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["mysql://host/database"], 1)])
def test_migrate_all_without_a_ledger_fails(arguments: list[str], code: int) -> None:
    assert main(arguments) == code
