"""Mutants that are made of a source, and the tests that are run against each."""

from pathlib import Path

import pytest

from benchmarks.mutation import SUITES, drawn, killed_by_level, known_equivalents, row
from benchmarks.mutation_operators import Mutant, Source
from benchmarks.mutation_runs import Measured, MutantOutcome
from benchmarks.mutation_targets import chosen_module, package_tests, sources_in
from lab.fixtures.machine import ROOT

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


def changes(mutants: list[Mutant], before: str) -> set[str]:
    return {mutant.after for mutant in mutants if mutant.before == before}


def test_a_guard_is_forced_both_ways_and_its_comparison_shifted(mutants: list[Mutant]) -> None:
    found = changes(mutants, "if len(self.things) >= LIMIT:")

    assert found == {"if False:", "if True:", "if len(self.things) > LIMIT:"}


def test_an_effect_is_left_out(mutants: list[Mutant]) -> None:
    assert changes(mutants, "self.things.append(thing)") == {"pass"}


def test_an_argument_with_a_name_gets_its_default(mutants: list[Mutant]) -> None:
    found = changes(mutants, 'self.put("lid", twice=True)')

    assert found == {"pass", 'self.put("lid")', 'self.put("lid", twice=False)', 'self.put("XXlidXX", twice=True)'}


def test_logs_docstrings_and_types_are_left_alone(mutants: list[Mutant]) -> None:
    touched = {mutant.before for mutant in mutants}

    assert not any("logger.warning" in before or '"""' in before or "import" in before for before in touched)


def test_every_mutant_is_another_program_that_can_be_read(mutants: list[Mutant]) -> None:
    sources = {mutant.source for mutant in mutants}

    assert len(sources) == len(mutants)
    assert SOURCE not in sources
    for source in sources:
        compile(source, "mutant", "exec")


def test_a_mutant_is_known_again_where_its_function_has_moved(mutants: list[Mutant], tmp_path: Path) -> None:
    (tmp_path / "box.py").write_text(SOURCE.replace("class Box", "MORE = True\n\n\nclass Box"))

    moved = {mutant.identity for mutant in all_mutants(tmp_path, "box.py")}

    assert {mutant.identity for mutant in mutants} < moved


def a_mutant(lines: range) -> Mutant:
    return Mutant("box.py", "Box.put", "number", lines, "1", "2", "")


def test_the_tests_that_run_a_mutant_s_line_are_asked_the_quickest_first() -> None:
    measured = Measured({"slow": 2.0, "quick": 0.1, "other": 0.0}, {"box.py": {3: ["slow", ""], 4: ["quick"]}})

    assert measured.tests_of(a_mutant(range(3, 5))) == ["quick", "slow"]


def test_what_runs_as_the_file_is_loaded_concerns_every_test() -> None:
    measured = Measured({"one": 1.0, "two": 2.0, "elsewhere": 3.0}, {"box.py": {1: [""], 3: ["one"], 4: ["two"]}})

    assert measured.tests_of(a_mutant(range(1, 2))) == ["one", "two", "elsewhere"]


def test_what_a_file_of_tests_runs_as_it_is_loaded_concerns_its_own_tests() -> None:
    names = {"tests/a.py::one": 1.0, "tests/b.py::two": 2.0, "tests/b.py::three": 3.0, "tests/c.py::four": 0.0}
    measured = Measured(names, {"box.py": {1: ["", "loaded tests/b.py"], 3: ["loaded tests/b.py", "tests/a.py::one"]}})

    assert measured.tests_of(a_mutant(range(3, 4))) == ["tests/a.py::one", "tests/b.py::two", "tests/b.py::three"]
    assert measured.tests_of(a_mutant(range(1, 2))) == sorted(names, key=lambda name: names[name])


def test_a_line_that_nobody_runs_has_no_tests() -> None:
    assert Measured({}, {"box.py": {1: [""]}}).tests_of(a_mutant(range(9, 10))) == []


def test_a_line_that_nobody_is_seen_to_run_is_left_to_tests_with_processes_of_their_own() -> None:
    measured = Measured({}, {"box.py": {1: [""]}}, unseen=["process"])

    assert measured.tests_of(a_mutant(range(9, 10))) == ["process"]


def test_killed_mutants_are_counted_by_the_level_of_their_test() -> None:
    tests = ["tests/unit/a.py::one", "tests/contract/b.py::two", "tests/unit/a.py::one", ""]
    killed = [MutantOutcome(a_mutant(range(1, 2)), "killed", test) for test in tests]

    counts = killed_by_level([*killed, MutantOutcome(a_mutant(range(1, 2)), "survived")])

    assert counts == {"unit": 2, "contract": 1, "killed": 1}
    assert row(killed[0], {})[-1] == "by tests/unit/a.py::one"


def test_sources_of_a_folder_are_its_modules_without_generated_ones(tmp_path: Path) -> None:
    for name in ("lab/a.py", "lab/deep/b.py", "lab/c_pb2.py", "lab/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    assert sorted(sources_in("lab", tmp_path)) == ["lab/a.py", "lab/deep/b.py"]
    assert sorted(sources_in("lab/*.py", tmp_path)) == ["lab/a.py"]
    assert sorted(sources_in("lab/d.txt", tmp_path)) == []


def test_sources_have_the_tests_of_their_package_at_every_level(tmp_path: Path) -> None:
    for name in ("unit/sdk", "contract/rpc", "services/sdk", "golden/sdk"):
        (tmp_path / "tests" / name).mkdir(parents=True)

    assert package_tests(["pentimento/sdk/client.py"], tmp_path) == ["tests/services/sdk", "tests/unit/sdk"]


def test_chosen_module_without_sources_or_tests_is_refused() -> None:
    with pytest.raises(SystemExit, match="no source file"):
        chosen_module(["pentimento/nothing"], [])
    with pytest.raises(SystemExit, match="name some with --tests"):
        chosen_module(["scripts/demo.py"], [])


def test_the_same_seed_draws_the_same_mutants_and_every_file_has_its_share() -> None:
    paths = ["pentimento/policies/plan/placement.py", "pentimento/policies/serving/demand.py"]
    sizes = {path: len(Source(ROOT, path).changes) for path in paths}
    half = sum(sizes.values()) // 2

    once, again, other = drawn(paths, half, 0), drawn(paths, half, 0), drawn(paths, half, 1)

    assert [mutant.identity for mutant in once] == [mutant.identity for mutant in again]
    assert [mutant.identity for mutant in once] != [mutant.identity for mutant in other]
    for path, size in sizes.items():
        assert sum(mutant.path == path for mutant in once) == pytest.approx(size / 2, abs=2)


def test_every_test_of_the_stores_that_knows_the_ledger_is_asked_about_it() -> None:
    """What is not asked lets mutants live that it would notice."""
    knowing = {
        str(path.relative_to(ROOT))
        for tier in ("contract", "unit")
        for path in (ROOT / "tests" / tier / "stores").glob("test_*.py")
        if "stores.ledger" in path.read_text() and "postgresql" not in path.name
    }

    assert knowing - {test for suite in SUITES if suite.name == "ledger" for test in suite.tests} == set()


def test_every_mutant_that_is_listed_as_equivalent_can_still_be_made() -> None:
    known = known_equivalents().keys()

    made = set()
    for path in {identity[0] for identity in known}:
        scopes = {scope for file, scope, _, _ in known if file == path}
        source = Source(ROOT, path, scopes)
        changes = [change for change in source.changes if change.scope in scopes]
        made |= {mutant.identity for mutant in source.mutants(changes)}

    assert known - made == set()


def test_exported_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "exports.py").write_text('__all__ = ["one"]\nWORD = "one"\n')

    assert {mutant.before for mutant in all_mutants(tmp_path, "exports.py")} == {'WORD = "one"'}


def test_parts_of_a_sentence_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        'told("key", "answered"\n     " RESOURCE_EXHAUSTED", help=("more are" f" {LIMIT - 1}"))\n'
    )

    found = {mutant.after for mutant in all_mutants(tmp_path, "told.py")}

    assert not any("XX RESOURCE" in after or "XXanswered" in after for after in found)
    assert any('"XXkeyXX"' in after for after in found) and any("LIMIT + 1" in after for after in found)
