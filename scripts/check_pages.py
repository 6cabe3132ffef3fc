"""Check the Markdown pages: links, names, figures, the navigation and every fenced block.

    python scripts/check_pages.py

Each fault is a line on standard error; with any, the exit code is 1. The rules are in `scripts/pages/`.
"""

from fault_rules import list_faults
from pages import figures, names, navigation, papers, snippets, steps

RULES = [rule for module in (names, figures, navigation, steps, papers, snippets) for rule in module.RULES]


if __name__ == "__main__":
    raise SystemExit(list_faults(RULES))
