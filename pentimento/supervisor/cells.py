"""Name a suite's cells, and remember how many it has had: requests stay in the cell that accepted them."""

import json
from collections.abc import Sequence
from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.files.private_files import replace_file

FIRST = "frontdoor"
FILE = "cells.json"
MOST_CELLS = 64


def cell_names(count: int) -> tuple[str, ...]:
    """Return the names of the first cells; the first one is the frontdoor of a suite without cells."""
    return (FIRST, *(f"{FIRST}-{number}" for number in range(1, count)))


def cell_lists(counts: Sequence[int]) -> tuple[str, ...]:
    """Return the lists of the frontdoors' setting, of counts with the present one first."""
    return tuple("+".join(cell_names(count)) for count in counts)


def remembered_counts(folder: Path, count: int) -> tuple[int, ...]:
    """Return the present count of cells and the earlier ones, newest first, and write them to the folder. Raises
    InvalidArgument for an invalid file."""
    file = folder / FILE
    try:
        earlier = json.loads(file.read_text())
    except FileNotFoundError:
        # A suite of before had one frontdoor, if any.
        earlier = [1] if (folder / "frontdoor.sqlite").is_file() else []
    except ValueError:
        earlier = None
    if not isinstance(earlier, list) or not all(type(one) is int and 1 <= one <= MOST_CELLS for one in earlier):
        raise InvalidArgument.of(FILE, f"must be a list of counts of 1 to {MOST_CELLS}: {file}")
    counts = (count, *(one for one in dict.fromkeys(earlier) if one != count))
    if counts != (1,):
        replace_file(file, json.dumps(counts) + "\n")
    return counts
