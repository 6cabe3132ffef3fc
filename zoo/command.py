"""How a command of the zoo ends: what went wrong is one line on stderr.

Exit status 0 when it is done, 1 when the machine would not have it (a full disk), 2 when something else has to be done
or asked for first (a part that is not trained, a file that is another's), 130 for Ctrl-C.
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
    """The type of an option: a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def finite(text: str) -> float:
    """The type of an option: a number, neither infinite nor NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text}")
    return number


def fail(line: str, code: int) -> int:
    print(f"pentimento: {line}", file=sys.stderr, flush=True)
    return code
