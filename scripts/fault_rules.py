"""Run the rules of a check and list every fault."""

import sys
from collections.abc import Callable, Iterable, Sequence


def list_faults(rules: Sequence[Callable[[], Iterable[object]]]) -> int:
    """Print each rule's faults on standard error. Returns the exit code: 1 with any fault, else 0."""
    count = 0
    for rule in rules:
        for fault in rule():
            count += 1
            print(f"{fault} ({rule.__name__})", file=sys.stderr)
    print(f"{len(rules)} rules, {count} faults")
    return 1 if count else 0
