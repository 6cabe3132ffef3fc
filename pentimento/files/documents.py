"""Parse JSON objects such as profiles, with the line of a fault, and read their files by path or directory. Check that
a command can write its output file, before the command starts.
"""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pentimento.domain.errors import InvalidArgument

logger = logging.getLogger(__name__)

T = TypeVar("T")


def parsed_json(text: str, field: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises InvalidArgument naming `field` and the faulty line."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument.of(field, f"must be JSON: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.of(field, f"must be JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument.of(field, "must be a JSON object")
    return document


def read_document(path: Path, parse: Callable[[str], T], setting: str) -> T:
    """Return the result of `parse` for the file's text. Raises InvalidArgument naming the setting with the path, the
    file, and the fault."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.of(setting, f"must be files that can be read: {path}: {error}") from error
    except InvalidArgument as error:
        raise InvalidArgument.of(setting, f"{path}: {error.message}") from None


def json_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files, and all .json files of the directories in the order of their names. A path without a suffix
    names a directory: a missing one is skipped with a warning."""
    return [file for path in paths for file in _files_at(path)]


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.json"))
    if not path.suffix and not path.exists():
        logger.warning("no directory %s: it is skipped", path)
        return []
    return [path]


def check_folder(field: str, file: Path) -> None:
    """Raise InvalidArgument for a file in a missing folder, and for a folder."""
    if not file.parent.is_dir():
        raise InvalidArgument.of(field, f"must be in a folder that exists, got {file}")
    if file.is_dir():
        raise InvalidArgument.of(field, f"must be a file, got the folder {file}")
