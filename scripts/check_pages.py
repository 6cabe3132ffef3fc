"""Check the Markdown pages: links, names, figures, the navigation and every fenced block.

    python scripts/check_pages.py

Each fault is a line on standard error; with any, the exit code is 1. The rules stand in `scripts/pages/`.
"""

import sys

from pages import figures, names, navigation, snippets, steps

RULES = [rule for module in (names, figures, navigation, steps, snippets) for rule in module.RULES]


def main() -> int:
    """Print the faults of all rules and return the exit code."""
    count = 0
    for rule in RULES:
        for fault in rule():
            count += 1
            print(f"{fault} ({rule.__name__})", file=sys.stderr)
    print(f"{len(RULES)} rules, {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
