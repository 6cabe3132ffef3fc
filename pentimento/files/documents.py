"""JSON files of one dataclass each, with the number of their format: profiles as `pentimento bench` writes them."""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import from_json, to_json

logger = logging.getLogger(__name__)

T = TypeVar("T")


def document_to_json(value: Any, format_number: int) -> str:
    """Return the text of the file."""
    return json.dumps({"format": format_number, **to_json(value)}, indent=1) + "\n"


def document_from_json(of: type[T], text: str, format_number: int, field: str) -> T:
    """Return the value. Raises InvalidArgument naming the line of what is no JSON, or the field below `field` that is
    missing, unknown, of another type or outside its limits."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument.of(field, f"must be JSON: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.of(field, f"must be JSON: {error}") from None
    if not isinstance(document, dict) or document.pop("format", None) != format_number:
        raise InvalidArgument.of(f"{field}.format", f"must be {format_number}")
    return from_json(of, document, field)


def read_document(path: Path, parse: Callable[[str], T], setting: str) -> T:
    """Return what `parse` makes of the file's text. Raises InvalidArgument naming the setting that names the file, the
    file, and what is wrong with it."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.of(setting, f"must be files that can be read: {path}: {error}") from None
    except InvalidArgument as error:
        raise InvalidArgument.of(setting, f"{path}: {error.message}") from None


def json_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files, and all .json files of the directories in the order of their names. A path without a suffix
    names a directory: one that is not there is skipped with a warning."""
    return [file for path in paths for file in _files_at(path)]


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.json"))
    if not path.suffix and not path.exists():
        logger.warning("no directory %s: it is skipped", path)
        return []
    return [path]
