"""Text files that tests read back."""

import gzip
import json
from pathlib import Path


def write_lines(path: Path, *lines: str) -> Path:
    """Write lines to a file, compressed if its name ends with .gz, and return its path."""
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def edit_json(path: Path, **changes: object) -> None:
    """Set keys of a file's JSON object."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
