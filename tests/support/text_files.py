"""Text files that tests read back."""

import gzip
from pathlib import Path


def write_lines(path: Path, *lines: str) -> Path:
    """Write lines to a file, compressed if its name ends with .gz, and return its path."""
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
