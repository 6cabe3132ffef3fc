"""Measure the share of small mistakes that tests notice, by module.

A random sample of mutants is run, each against the tests that reach its line, in a copy of the tree.

    python -m benchmarks.mutation [--only MODULE ...] [--sample N] [--seed N] [--processes N] [--list]
    python -m benchmarks.mutation --paths pentimento/sdk [--tests tests/unit/sdk ...] --list > before.txt
    python -m benchmarks.mutation --changed main --list

A mutant that a test fails on, or that hangs, is killed. The result names the test that killed each mutant and counts
kills by level (unit, contract, ...), quickest tests first: a level has the kills that the quicker tests of others
missed. Survivors that change nothing observable stand with their reasons in mutation_equivalents.toml and are counted
apart. With `--paths` or `--changed` a result is written only to `--out`.
"""

import argparse
import os
import random
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.mutation_operators import Mutant, Source
from benchmarks.mutation_runs import (
    NICENESS,
    Measured,
    MutantOutcome,
    MutatedModule,
    check_unchanged,
    copies,
    measure,
    run_all,
)
from benchmarks.mutation_targets import changed_since, chosen_module
from lab.runs.machine import ROOT
from lab.runs.measure import (
    Figure,
    Options,
    Target,
    at_least,
    default_out,
    informative,
    parse_options,
    print_figures,
    publish,
    share,
)
from lab.runs.parts import PartResult, merge_parts

EQUIVALENTS = ROOT / "benchmarks" / "mutation_equivalents.toml"
TARGET = 0.9
SUITES = (
    MutatedModule("dataplane", ("pentimento/dataplane/*.py",), ("tests/unit/dataplane",)),
    MutatedModule("policies", ("pentimento/policies/**/*.py",), ("tests/unit/policies",)),
    MutatedModule(
        "ledger",
        ("pentimento/stores/ledger/**/*.py",),
        (
            "tests/contract/stores/test_cache_access.py",
            "tests/contract/stores/test_cache_holdings.py",
            "tests/contract/stores/test_backup.py",
            "tests/contract/stores/test_cache_ledger.py",
            "tests/contract/stores/test_migrate_all.py",
            "tests/contract/stores/test_cache_machine.py",
            "tests/contract/stores/test_cache_parts.py",
            "tests/contract/stores/test_cache_quality.py",
            "tests/contract/stores/test_erasure_ledger.py",
            "tests/contract/stores/test_fleet_ledger.py",
            "tests/contract/stores/test_journal.py",
            "tests/contract/stores/test_journal_jobs.py",
            "tests/contract/stores/test_journal_leases.py",
            "tests/contract/stores/test_journal_machine.py",
            "tests/contract/stores/test_journal_objects.py",
            "tests/contract/stores/test_migrations.py",
            "tests/contract/stores/test_older_ledgers.py",
            "tests/contract/stores/test_tenant_ledger.py",
            "tests/unit/stores/test_cache_statements.py",
            "tests/unit/stores/test_group_commit.py",
            "tests/unit/stores/test_journal_searches.py",
            "tests/unit/stores/test_journal_time.py",
            "tests/unit/stores/test_ledger_database.py",
            "tests/unit/stores/test_statements.py",
        ),
        "not postgresql",
    ),
    MutatedModule(
        "rpc",
        ("pentimento/rpc/**/*.py",),
        ("tests/unit/rpc", "tests/contract/rpc"),
        "not test_memory",
        ("tests/contract/rpc/test_process.py", "tests/contract/rpc/test_probe.py"),
    ),
    MutatedModule(
        "tenants",
        (
            "pentimento/dataplane/quotas.py",
            "pentimento/domain/tenants.py",
            "pentimento/policies/*_quota.py",
            "pentimento/stores/ledger/tenant_*.py",
            "services/frontdoor/tenants/*.py",
        ),
        (
            "tests/contract/stores/test_migrations.py",
            "tests/contract/stores/test_tenant_ledger.py",
            "tests/unit/dataplane/test_quota_walks.py",
            "tests/unit/dataplane/test_quotas.py",
            "tests/unit/domain/test_tenants.py",
            "tests/unit/frontdoor/test_tenant_administration.py",
            "tests/unit/frontdoor/test_tenant_directory.py",
            "tests/unit/frontdoor/test_usage_meter.py",
            "tests/unit/policies/test_cache_quota.py",
            "tests/unit/policies/test_tenant_quota.py",
        ),
        "not postgresql",
    ),
    MutatedModule("lookup", ("services/vectordb_gateway/lookup/lookup.py",), ("tests/unit/vectordb_gateway",)),
)
Equivalents = dict[tuple[str, str, str, str], str]
"""Of a mutant's identity, why nobody could see it."""
# Seconds of loading and collecting; the tests' own time is added.
_OVERHEAD_S = 1.5


def main() -> int:
    options = parse_options("mutation", __doc__, add_options)
    os.nice(NICENESS)
    sample = 10 if options.quick else options.rest["sample"]
    known = known_equivalents()
    listed = known if options.rest["list"] else None
    suites, is_chosen = suites_of(options)
    found = {}
    with copies(options.rest["processes"]) as trees:
        for suite in suites:
            outcomes = run_suite(suite, sample, options.rest["seed"], trees, listed)
            found[suite.name] = PartResult(
                figures_of(suite.name, outcomes, known),
                {"seed": options.rest["seed"], "sample": sample, "killed_by_level": killed_by_level(outcomes)},
            )
    if not is_chosen:
        figures, notes = merge_parts(
            options.out if options.rest["only"] else None, [suite.name for suite in SUITES], found
        )
        return publish(options, figures, notes={"parts": notes})
    figures = [figure for part in found.values() for figure in part.figures]
    if options.out != default_out("mutation", options.quick):
        return publish(options, figures, notes={"parts": {name: part.notes for name, part in found.items()}})
    print_figures(figures, all(figure.ok for figure in figures))
    return 0 if all(figure.ok for figure in figures) else 1


def suites_of(options: Options) -> tuple[list[MutatedModule], bool]:
    """Return the modules to mutate, and whether the command line chose their files."""
    paths: list[str] = list(options.rest["paths"])
    if options.rest["changed"]:
        paths += changed_since(options.rest["changed"])
    if paths:
        return [chosen_module(paths, options.rest["tests"])], True
    if options.rest["changed"]:
        raise SystemExit(f"no source file has changed since {options.rest['changed']}")
    if options.rest["tests"]:
        raise SystemExit("--tests needs --paths or --changed: the named modules have tests of their own")
    return [suite for suite in SUITES if suite.name in (options.rest["only"] or [suite.name])], False


def add_options(parser: argparse.ArgumentParser) -> None:
    names = [suite.name for suite in SUITES]
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="+", default=[], choices=names, help="these modules; others keep their figures")
    chosen.add_argument("--paths", nargs="+", default=[], help="files, folders or patterns to mutate instead")
    chosen.add_argument("--changed", metavar="REF", help="mutate the source files changed since this commit")
    parser.add_argument("--tests", nargs="+", default=[], help="folders or files of tests (default: the packages' own)")
    parser.add_argument("--sample", type=int, default=150, help="mutants a module (default: 150)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--list", action="store_true", help="print every mutant, with the test that killed it")


def run_suite(
    suite: MutatedModule, sample: int, seed: int, trees: Sequence[Path], listed: Equivalents | None = None
) -> list[MutantOutcome]:
    """Run a sample of mutants. With `listed`, print each as its run ends, equivalent ones with their reasons."""
    measured = measure(suite, trees[0])
    check_unchanged(suite, measured, trees[0])
    mutants = drawn(suite.paths(), sample, seed)
    print(f"{suite.name}: {len(mutants)} mutants, about {estimate_s(mutants, measured) / len(trees):.0f} s", flush=True)
    if measured.failed:
        print(f"{suite.name}: left out, they fail as it is: {', '.join(measured.failed)}", flush=True)
    started = time.monotonic()
    outcomes = []
    for outcome in run_all(mutants, measured, trees):
        outcomes.append(outcome)
        if listed is not None:
            print(*row(outcome, listed), flush=True)
    print(f"{suite.name}: {time.monotonic() - started:.0f} s", flush=True)
    return outcomes


def drawn(paths: Sequence[str], sample: int, seed: int) -> list[Mutant]:
    """Return `sample` mutants of the files, each file in proportion to its own number; `seed` decides which."""
    sources = [Source(ROOT, path) for path in paths]
    rng, share = random.Random(seed), min(sample / sum(len(source.changes) for source in sources), 1.0)
    mutants = []
    for source in sources:
        mutants += source.mutants(rng.sample(source.changes, round(share * len(source.changes))))
    return mutants


def estimate_s(mutants: Iterable[Mutant], measured: Measured) -> float:
    """As if every mutant died half way through its tests."""
    return sum(
        _OVERHEAD_S + sum(measured.seconds[name] for name in measured.tests_of(mutant)) / 4 for mutant in mutants
    )


def known_equivalents() -> Equivalents:
    entries = tomllib.loads(EQUIVALENTS.read_text())["equivalent"] if EQUIVALENTS.exists() else []
    return {(entry["file"], entry["scope"], entry["before"], entry["after"]): entry["reason"] for entry in entries}


def figures_of(name: str, outcomes: Sequence[MutantOutcome], known: Equivalents) -> list[Figure]:
    """Return the killed shares: of mutants that change behaviour (the target's figure), and of all mutants."""
    telling = [outcome for outcome in outcomes if outcome.is_killed or outcome.mutant.identity not in known]
    print(f"{name}: {Counter(outcome.verdict for outcome in outcomes)}", flush=True)
    return [
        killed_share(f"{name}: killed", telling, at_least(TARGET)),
        killed_share(f"{name}: killed, equivalent ones included", outcomes, informative()),
    ]


def killed_share(name: str, outcomes: Sequence[MutantOutcome], target: Target) -> Figure:
    return share(name, sum(outcome.is_killed for outcome in outcomes), len(outcomes), target)


def row(outcome: MutantOutcome, known: Equivalents) -> list[str]:
    """Return verdict, operator, place and change, then the test that killed it or the reason why none could."""
    mutant = outcome.mutant
    reason = "" if outcome.is_killed else known.get(mutant.identity, "")
    explained = [f"by {outcome.test}"] if outcome.test else [f"equivalent: {reason}"] if reason else []
    return [outcome.verdict, mutant.operator, str(mutant), *explained]


def killed_by_level(outcomes: Iterable[MutantOutcome]) -> dict[str, int]:
    """Count killed mutants by the level of the test that killed them."""
    return dict(Counter(outcome.level for outcome in outcomes if outcome.is_killed))


if __name__ == "__main__":
    raise SystemExit(main())
