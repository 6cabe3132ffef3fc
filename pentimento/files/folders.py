"""Check that a command can write its output file, before the command starts."""

from pathlib import Path

from pentimento.domain.errors import InvalidArgument


def check_folder(field: str, file: Path) -> None:
    """Raise InvalidArgument for a file in a missing folder, and for a folder."""
    if not file.parent.is_dir():
        raise InvalidArgument.of(field, f"must be in a folder that exists, got {file}")
    if file.is_dir():
        raise InvalidArgument.of(field, f"must be a file, got the folder {file}")
