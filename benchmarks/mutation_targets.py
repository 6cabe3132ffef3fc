"""The source files that a command line asks to mutate, and the tests that belong to their packages."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.mutation_runs import MutatedModule
from lab.runs.machine import ROOT, git

PRODUCT = ("pentimento", "services", "lab")
LEVELS = ("unit", "contract", "services", "integration")


def chosen_module(paths: Iterable[str], tests: Iterable[str]) -> MutatedModule:
    """Return the files of `paths` as one module, with `tests` or those of the packages. SystemExit without any."""
    sources = tuple(sorted({source for path in paths for source in sources_in(path)}))
    asked = tuple(tests) or tuple(package_tests(sources))
    if not sources or not asked:
        raise SystemExit("no source file there" if not sources else "no tests of their own: name some with --tests")
    return MutatedModule("chosen", sources, asked)


def sources_in(path: str, root: Path = ROOT) -> Iterator[str]:
    """Yield the Python files of a file, a folder or a pattern, generated ones left out."""
    is_folder = (root / path).is_dir()
    for found in root.glob(f"{path.rstrip('/')}/**/*.py" if is_folder else path):
        if found.suffix == ".py" and not found.stem.endswith(("_pb2", "_pb2_grpc")):
            yield str(found.relative_to(root))


def package_tests(sources: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test folders that have the name of a source's package, at every level that needs no suite."""
    packages = {source.split("/")[1] for source in sources}
    return sorted(
        f"tests/{level}/{name}" for level in LEVELS for name in packages if (root / "tests" / level / name).is_dir()
    )


def changed_since(reference: str) -> list[str]:
    """Return the product's source files that differ from a commit, committed or not."""
    return git("diff", "--name-only", "--diff-filter=d", reference, "--", *PRODUCT).splitlines()
