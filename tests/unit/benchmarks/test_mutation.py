"""Test the mutants of a source, and the choice of the tests that run against each."""

from pathlib import Path

import pytest

from benchmarks.mutation import SUITES, drawn, killed_by_level, known_equivalents, row
from benchmarks.mutation_operators import Mutant, Source
from benchmarks.mutation_runs import Measured, MutantOutcome
from benchmarks.mutation_targets import chosen_module, package_tests, sources_in
from lab.runs.machine import ROOT

SOURCE = '''"""A word about the module."""

import logging

logger = logging.getLogger(__name__)
LIMIT: int = 3


class Box:
    """Holds things."""

    def put(self, thing: str, *, twice: bool = False) -> bool:
        if len(self.things) >= LIMIT:
            logger.warning("it is full")
            return False
        self.things.append(thing)
        self.put("lid", twice=True)
        return True
'''


def all_mutants(root: Path, path: str) -> list[Mutant]:
    source = Source(root, path)
    return source.mutants(source.changes)


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutant]:
    (tmp_path / "box.py").write_text(SOURCE)
    return all_mutants(tmp_path, "box.py")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if len(self.things) >= LIMIT:", {"if False:", "if True:", "if len(self.things) > LIMIT:"}),
        ("self.things.append(thing)", {"pass"}),
        (
            'self.put("lid", twice=True)',
            {"pass", 'self.put("lid")', 'self.put("lid", twice=False)', 'self.put("XXlidXX", twice=True)'},
        ),
    ],
)
def test_line_has_its_mutants(mutants: list[Mutant], line: str, expected: set[str]) -> None:
    assert {mutant.after for mutant in mutants if mutant.before == line} == expected


def test_logs_and_docstrings_have_no_mutants(mutants: list[Mutant]) -> None:
    touched = {mutant.before for mutant in mutants}

    assert not any("logger.warning" in before or '"""' in before or "import" in before for before in touched)


def test_mutants_are_different_valid_programs(mutants: list[Mutant]) -> None:
    sources = {mutant.source for mutant in mutants}

    assert len(sources) == len(mutants)
    assert SOURCE not in sources
    for source in sources:
        compile(source, "mutant", "exec")


def test_moved_function_keeps_identities_of_its_mutants(mutants: list[Mutant], tmp_path: Path) -> None:
    (tmp_path / "box.py").write_text(SOURCE.replace("class Box", "MORE = True\n\n\nclass Box"))

    moved = {mutant.identity for mutant in all_mutants(tmp_path, "box.py")}

    assert {mutant.identity for mutant in mutants} < moved


def a_mutant(lines: range) -> Mutant:
    return Mutant("box.py", "Box.put", "number", lines, "1", "2", "")


BY_LINE = Measured({"slow": 2.0, "quick": 0.1, "other": 0.0}, {"box.py": {1: [""], 3: ["slow", ""], 4: ["quick"]}})
ONE, TWO, THREE, FOUR = "tests/a.py::one", "tests/b.py::two", "tests/b.py::three", "tests/c.py::four"
LOADED = ["loaded tests/b.py"]
BY_FILE = Measured({ONE: 1.0, TWO: 2.0, THREE: 3.0, FOUR: 0.0}, {"box.py": {1: ["", *LOADED], 3: [*LOADED, ONE]}})
NONE, PROCESSES = (Measured({}, {"box.py": {1: [""]}}, unseen=unseen) for unseen in ([], ["process"]))
CHOSEN: dict[str, tuple[Measured, range, list[str]]] = {
    "tests that run the line, quickest first": (BY_LINE, range(3, 5), ["quick", "slow"]),
    "every test if the line runs at import": (BY_LINE, range(1, 2), ["other", "quick", "slow"]),
    "every test of the file that imports it": (BY_FILE, range(3, 4), [ONE, TWO, THREE]),
    "every test if both run it": (BY_FILE, range(1, 2), [FOUR, ONE, TWO, THREE]),
    "no test": (NONE, range(9, 10), []),
    "tests with processes if no other runs the line": (PROCESSES, range(9, 10), ["process"]),
}


def test_mutant_is_run_against_tests_of_its_lines() -> None:
    for what, (measured, lines, tests) in CHOSEN.items():
        assert measured.tests_of(a_mutant(lines)) == tests, what


def test_killed_mutants_are_counted_by_test_level() -> None:
    tests = ["tests/unit/a.py::one", "tests/contract/b.py::two", "tests/unit/a.py::one", ""]
    killed = [MutantOutcome(a_mutant(range(1, 2)), "killed", test) for test in tests]

    counts = killed_by_level([*killed, MutantOutcome(a_mutant(range(1, 2)), "survived")])

    assert counts == {"unit": 2, "contract": 1, "killed": 1}
    assert row(killed[0], {})[-1] == "by tests/unit/a.py::one"


def test_sources_in_a_folder_leave_out_generated_ones(tmp_path: Path) -> None:
    for name in ("lab/a.py", "lab/deep/b.py", "lab/c_pb2.py", "lab/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    assert sorted(sources_in("lab", tmp_path)) == ["lab/a.py", "lab/deep/b.py"]
    assert sorted(sources_in("lab/*.py", tmp_path)) == ["lab/a.py"]
    assert sorted(sources_in("lab/d.txt", tmp_path)) == []


def test_package_tests_have_every_level(tmp_path: Path) -> None:
    for name in ("unit/sdk", "contract/rpc", "services/sdk", "golden/sdk"):
        (tmp_path / "tests" / name).mkdir(parents=True)

    assert package_tests(["pentimento/sdk/client.py"], tmp_path) == ["tests/services/sdk", "tests/unit/sdk"]


def test_chosen_module_without_sources_or_tests_is_refused() -> None:
    with pytest.raises(SystemExit, match="no source file"):
        chosen_module(["pentimento/nothing"], [])
    with pytest.raises(SystemExit, match="name some with --tests"):
        chosen_module(["scripts/demo.py"], [])


def test_drawn_mutants_repeat_by_seed_with_shares_by_file() -> None:
    paths = ["pentimento/policies/plan/placement.py", "pentimento/policies/plan/demand.py"]
    sizes = {path: len(Source(ROOT, path).changes) for path in paths}
    half = sum(sizes.values()) // 2

    once, again, other = drawn(paths, half, 0), drawn(paths, half, 0), drawn(paths, half, 1)

    assert [mutant.identity for mutant in once] == [mutant.identity for mutant in again]
    assert [mutant.identity for mutant in once] != [mutant.identity for mutant in other]
    for path, size in sizes.items():
        assert sum(mutant.path == path for mutant in once) == pytest.approx(size / 2, abs=2)


def test_ledger_suite_has_every_test_of_the_ledger() -> None:
    """A missing test lets mutants survive that it would kill."""
    knowing = {
        str(path.relative_to(ROOT))
        for tier in ("contract", "unit")
        for path in (ROOT / "tests" / tier / "stores").glob("test_*.py")
        if "stores.ledger" in path.read_text() and "postgresql" not in path.name
    }

    assert knowing - {test for suite in SUITES if suite.name == "ledger" for test in suite.tests} == set()


def test_listed_equivalents_can_still_be_made() -> None:
    known = known_equivalents().keys()

    made = set()
    for path in {identity[0] for identity in known}:
        scopes = {scope for file, scope, _, _ in known if file == path}
        source = Source(ROOT, path, scopes)
        changes = [change for change in source.changes if change.scope in scopes]
        made |= {mutant.identity for mutant in source.mutants(changes)}

    assert known - made == set()


def test_exported_names_have_no_mutants(tmp_path: Path) -> None:
    (tmp_path / "exports.py").write_text('__all__ = ["one"]\nWORD = "one"\n')

    assert {mutant.before for mutant in all_mutants(tmp_path, "exports.py")} == {'WORD = "one"'}


def test_parts_of_a_sentence_have_no_mutants(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        'told("key", "answered"\n     " RESOURCE_EXHAUSTED", help=("more are" f" {LIMIT - 1}"))\n'
    )

    found = {mutant.after for mutant in all_mutants(tmp_path, "told.py")}

    assert not any("XX RESOURCE" in after or "XXanswered" in after for after in found)
    assert any('"XXkeyXX"' in after for after in found) and any("LIMIT + 1" in after for after in found)
