"""Check rules of the code that no linter knows.

    python scripts/check_code.py

- No two classes have the same name.
- Public functions, classes and methods of the packages that others build on have docstrings, which begin with a verb.
- Tests of the first tier load no heavy library while they are collected: torch only in three folders, others only in
  fixtures and functions.
- Only the ledger's runner of statements, its database and its migrations run statements on a connection.

Each fault is a line on standard error; with any, the exit code is 1.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fault_rules import list_faults

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.tiers import is_second  # noqa: E402

FOLDERS = ("pentimento", "services", "lab", "zoo", "benchmarks")
DOCUMENTED = ("policies", "dataplane", "stores", "clients", "sdk", "service", "diffusion", "tensors")
# The pairs `x_to_proto`, `x_from_proto` are described once, in the package.
VERBS_ONLY = "wire"
LEAST_SHARE = 0.95
# No imperative begins with any such word.
NO_VERBS = "A An The All Each Every Its Their Whose Whether What Which Who How When Where Of By None Changes"

# Each takes a process of tests 0.1 s to 3 s to import. Where a test needs one, a fixture or the test imports it.
HEAVY = {
    "diffusers", "libcst", "matplotlib", "moto", "openai", "peft", "playwright", "qdrant_client", "scipy",
    "sentence_transformers", "sklearn", "torch", "transformers",
}  # fmt: skip
WITH_TORCH = ("tests/unit/diffusion/", "tests/unit/unet_worker/", "tests/unit/embedder/")
TORCH = {"torch", "diffusers", "transformers"}
OURS = {*FOLDERS, "tests", "scripts"}

RUNNERS = {f"pentimento/stores/ledger/{name}.py" for name in ("database", "migrations", "statements")}
RUNS = {"execute", "exec_driver_sql", "scalar", "scalars"}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def class_names_are_unique() -> Iterator[str]:
    homes = defaultdict(list)
    for path in sources(*FOLDERS):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    yield from (f"{name} is used twice: {', '.join(found)}" for name, found in homes.items() if len(found) > 1)


def public_definitions_have_docstrings() -> Iterator[str]:
    for package in DOCUMENTED:
        known = {place: ast.get_docstring(node) for place, node in definitions(package)}
        missing = [place for place, text in known.items() if not text]
        if len(missing) > (1 - LEAST_SHARE) * len(known):
            yield f"pentimento/{package}: more than {1 - LEAST_SHARE:.0%} lack a docstring: {', '.join(missing)}"


def docstrings_of_functions_begin_with_a_verb() -> Iterator[str]:
    for package in (*DOCUMENTED, VERBS_ONLY):
        for place, node in definitions(package):
            text = ast.get_docstring(node) if is_called(node) else None
            if text and (first := text.split(maxsplit=1)[0]) in NO_VERBS.split():
                yield f"{place} begins with {first!r}"


def first_tier_tests_load_nothing_heavy() -> Iterator[str]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if path.name.startswith(("test_", "conftest")) and not is_second(name):
            allowed = TORCH if name.startswith(WITH_TORCH) else set()
            for library, chain in sorted(loaded_by(path).items()):
                if library not in allowed:
                    yield f"{name} loads {library}: {' → '.join(chain)}"


def statements_have_one_runner() -> Iterator[str]:
    for path in sources("pentimento", "services"):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(parsed(path)) if name not in RUNNERS else ():
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in RUNS and ast.unparse(called.value) == "connection":
                yield f"{name}:{node.lineno} runs a statement itself: a `Statement` runs it"


def sources(*folders: str) -> Iterator[Path]:
    """Yield the modules of some folders that are not generated."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.stem.endswith(("_pb2", "_pb2_grpc")):
                yield path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def definitions(package: str) -> tuple[tuple[str, Definition], ...]:
    """Return the public definitions of a package, each with its place."""
    home = ROOT / "pentimento"
    return tuple(
        (f"{path.relative_to(home)}:{node.lineno} {node.name}", node)
        for path in sorted((home / package).rglob("*.py"))
        for node in public(parsed(path).body)
    )


def public(body: list[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def is_called(node: Definition) -> bool:
    """Return whether a definition is a function or method: classes and properties do nothing."""
    is_property = any("property" in ast.unparse(one) for one in node.decorator_list)
    return not isinstance(node, ast.ClassDef) and not is_property


def loaded_by(path: Path) -> dict[str, list[str]]:
    """Return the heavy libraries that importing a module loads, each with the chain of modules that leads to it."""
    found: dict[str, list[str]] = {}
    seen, waiting = {path}, [(path, [])]
    while waiting:
        module, chain = waiting.pop(0)
        for name in imported(module):
            top = name.split(".")[0]
            if top in HEAVY or name == "safetensors.torch":
                found.setdefault("torch" if top == "safetensors" else top, [*chain, name])
            elif top in OURS:
                for file in files_of(name):
                    if file not in seen:
                        seen.add(file)
                        waiting.append((file, [*chain, str(file.relative_to(ROOT))]))
    return found


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return the dotted names that a module imports when it is loaded: outside functions, and not only for types."""
    names: list[str] = []
    waiting: list[ast.AST] = list(parsed(path).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                home = ".".join([*path.relative_to(ROOT).parts[: -node.level], *([home] if home else [])])
            names += [f"{home}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return tuple(names)


@cache
def files_of(name: str) -> tuple[Path, ...]:
    """Return the files that run when a dotted name of this repository is imported: its packages, and the module."""
    parts = name.split(".")
    places = [ROOT.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()]
    return tuple(files)


RULES = (
    class_names_are_unique,
    public_definitions_have_docstrings,
    docstrings_of_functions_begin_with_a_verb,
    first_tier_tests_load_nothing_heavy,
    statements_have_one_runner,
)


if __name__ == "__main__":
    raise SystemExit(list_faults(RULES))
