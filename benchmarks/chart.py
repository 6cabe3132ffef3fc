"""Render the Helm chart for many combinations of its values, and check each for five versions of Kubernetes.

    python -m benchmarks.chart

A combination takes one alternative of every choice (stores, TLS, tokens, devices, models, caches, scaling, cascade, …);
together they have every pair of alternatives. Each one, and every example of the chart, is linted, rendered for each
version, validated by that version's schemas, which reject unknown fields, and by rules like kube-score's; and each
container's variables are read by its own service's settings. The control plants faults into manifests and values.

Nothing is applied to a cluster. `scripts/fetch_chart_tools.py` fetches helm and the schemas.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.fixtures.charts.combinations import CHOICES, EXTERNAL, combinations_of_values, every_pair, pairs, values_of
from lab.fixtures.charts.faults import PLANTED, WRONG_VALUES, planted
from lab.fixtures.charts.rendering import (
    EXAMPLES,
    VERSIONS,
    HelmRefusal,
    Values,
    lint,
    missing_tools,
    render,
)
from lab.fixtures.charts.starting import findings
from lab.runs.measure import Figure, Notes, at_least, at_most, counted, parse_options, publish

COMBINATIONS, QUICK = 72, 6


def checked(values: Sequence[Path | Values], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the findings for some values, each with the check that found it: lint, or a version of Kubernetes."""
    try:
        lint(values, folder)
        for version in VERSIONS:
            yield from ((version, finding) for finding in findings(render(values, folder, version), version, folder))
    except HelmRefusal as error:
        yield "helm", str(error)


def noticed_faults(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield every planted fault, and whether a check noticed it; wrong values must be named."""
    sound = render([EXTERNAL], folder)
    for fault in PLANTED:
        yield fault, bool(findings(planted(sound, fault), VERSIONS[-1], folder))
    for field, wrong in WRONG_VALUES.items():
        try:
            render([EXTERNAL, wrong], folder)
            yield field, False
        except HelmRefusal as error:
            yield field, field in str(error)


def figures(found: Counter[str], combination_count: int, pair_share: float, faults: dict[str, bool]) -> list[Figure]:
    """Return the figures with their targets."""
    rendered = (combination_count + len(EXAMPLES)) * len(VERSIONS)
    missed = [*faults.values()].count(False)
    return [
        counted("releases with findings, rendered for five versions", found.total(), rendered, at_most(0)),
        Figure("combinations of values", combination_count, at_least(60), combination_count),
        Figure("share of all pairs of alternatives", pair_share, at_least(1), len(every_pair())),
        counted("planted faults and wrong values that no check noticed", missed, len(faults), at_most(0)),
    ]


def main() -> int:
    options = parse_options("chart", __doc__)
    if missing := missing_tools():
        raise SystemExit(missing)
    drawn = list(combinations_of_values(QUICK if options.quick else COMBINATIONS))
    seen = {pair for rows in drawn for pair in pairs(rows)}
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        every: list[Sequence[Path | Values]] = [[example] for example in EXAMPLES]
        every += [[values_of(rows)] for rows in drawn]
        for number, values in enumerate(every):
            wrong = {}
            for version, finding in checked(values, folder):
                print(f"{number} {version}: {finding}", flush=True)
                wrong[version] = 1
            found += Counter(wrong)
        faults = dict(noticed_faults(folder))
    print("\n".join(f"not noticed: {fault}" for fault, noticed in faults.items() if not noticed))
    share = len(seen & every_pair()) / len(every_pair())
    notes: Notes = {"choices": len(CHOICES), "versions": f"{VERSIONS[0]}-{VERSIONS[-1]}", "examples": len(EXAMPLES)}
    return publish(options, figures(found, len(drawn), share, faults), notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())
