"""End a command of the zoo with a one-line error on stderr.

Exit status 0 on success, 1 if the machine prevents it (a full disk), 2 if another step or option is needed first (a
part without training, another file's content), 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn

from pentimento.domain.errors import PentimentoError, ResourceExhausted


def run(main: Callable[[], int | None]) -> NoReturn:
    try:
        code = main() or 0
    except PentimentoError as error:
        code = fail(error.message, 1 if isinstance(error, ResourceExhausted) else 2)
    except KeyboardInterrupt:
        code = fail("stopped", 130)
    except OSError as error:
        if error.filename is None:
            raise
        code = fail(f"{error.filename}: {error.strerror}", 1)
    sys.exit(code)


def positive(text: str) -> int:
    """Parse an option: a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def finite(text: str) -> float:
    """Parse an option: a number, neither infinite nor NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text}")
    return number


def fail(line: str, code: int) -> int:
    print(f"pentimento: {line}", file=sys.stderr, flush=True)
    return code
