"""Test files that people write: read by name, type and limit; errors name file, line and field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.files.toml_document import TomlTable, parse_toml, read_toml
from pentimento.domain.errors import InvalidArgument, NotFound
from tests.support.refusals import wrong_refusals

DOCUMENT = """\
seed = 7
name = "sixteen"
quick = true

[cache]
share = 0.5

[[devices]]
name = "a"

# a comment
[[devices]]
name = "b"
speed = -1.5
models = ["x", 3]
[devices.memory]
total_bytes = 1
"""


def document() -> TomlTable:
    return parse_toml(DOCUMENT, "fleet.toml")


def test_fields_are_read_by_name_and_type() -> None:
    table = document()

    assert (table.whole("seed"), table.text("name"), table.flag("quick")) == (7, "sixteen", True)
    assert table.number("seed") == 7.0
    assert table.number("absent", 1.5) == 1.5
    assert [device.text("name") for device in table.tables("devices")] == ["a", "b"]


def test_missing_table_is_none() -> None:
    assert document().table("absent") is None
    assert document().tables("absent") == []


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda table: table.text("seed"), r"fleet\.toml:1: seed: must be a text, got int"),
    (lambda table: table.whole("quick"), r"fleet\.toml:3: quick: must be a whole number, got bool"),
    (lambda table: table.flag("seed"), r"fleet\.toml:1: seed: must be true or false, got int"),
    (lambda table: table.text("absent"), r"fleet\.toml:1: absent: must be given: a text"),
    (lambda table: table.table("cache").number("share", maximum=0.4), r":6: cache\.share: must be 0 to 0\.4"),
    (lambda table: table.tables("devices")[1].number("speed"), r":14: devices\[1\]\.speed: must be at least 0"),
    (lambda table: table.tables("devices")[1].texts("models"), r":15: devices\[1\]\.models: must be a list of te"),
    (lambda table: table.tables("devices")[0].number("speed"), r":8: devices\[0\]\.speed: must be given"),
    (
        lambda table: table.tables("devices")[1].table("memory").whole("total_bytes", minimum=2),
        r":17: devices\[1\]\.memory\.total_bytes: must be at least 2, got 1",
    ),
]


def test_a_wrong_field_names_file_line_and_limit() -> None:
    assert wrong_refusals(InvalidArgument, lambda read: read(document()), WRONG) == []
    for value in ("nan", "inf", "-inf"):
        with pytest.raises(InvalidArgument, match="f:1: rate: must be at least 0"):
            parse_toml(f"rate = {value}", "f").number("rate")


def test_unread_field_is_rejected_with_its_line() -> None:
    table = document()
    assert (table.whole("seed"), table.text("name"), table.flag("quick")) == (7, "sixteen", True)
    cache = table.table("cache")
    assert cache is not None
    cache.number("share")
    devices = table.tables("devices")
    for device in devices:
        device.text("name")

    with pytest.raises(InvalidArgument, match=r"fleet\.toml:14: devices\[1\]\.speed: is no field .* \(name\)"):
        table.close()


def test_wrong_toml_names_its_line() -> None:
    with pytest.raises(InvalidArgument, match=r"f: must be TOML: .*line 2"):
        parse_toml("a = 1\nb = !\n", "f")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"absent\.toml: not there"):
        read_toml(tmp_path / "absent.toml")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_bytes(b"\xff")

    with pytest.raises(InvalidArgument, match="UTF-8"):
        read_toml(tmp_path / "f.toml")


def test_path_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text('profile = "profiles/a.json"')

    assert read_toml(tmp_path / "f.toml").path("profile") == tmp_path / "profiles" / "a.json"
