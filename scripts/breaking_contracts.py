"""List changes of the contracts that would break a peer of an earlier version: `buf breaking` against a commit.

    python scripts/breaking_contracts.py            # against the last tag before this commit, else the fork from main
    python scripts/breaking_contracts.py REVISION   # against that revision

Until version 1.0 contracts may change, so breaking changes are listed and nothing fails. From 1.0 on the exit code is
1. Without git, its history or an earlier version of the descriptor set nothing is compared, and the output reports
that.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTOR_SET = "protos/pentimento.binpb"
BUF = Path(sys.executable).parent / "buf"


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    earlier = arguments[0] if arguments else earlier_revision(ROOT)
    image = committed(ROOT, earlier) if earlier else None
    if image is None:
        print(f"contracts are compared with nothing: {f'{earlier} has none' if earlier else 'no earlier version here'}")
        return 0
    broken = what_breaks(ROOT / "protos", image)
    print(f"against {earlier}: {len(broken)} changes would break a peer")
    for line in broken:
        print(f"  {line}")
    return exit_code(version_of(ROOT), broken)


def exit_code(version: str, broken: Sequence[str]) -> int:
    """Return 1 where something breaks and the version promises that nothing does."""
    return int(bool(broken) and int(version.split(".")[0]) >= 1)


def version_of(root: Path) -> str:
    """Return the project's version."""
    return str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])


def earlier_revision(root: Path) -> str:
    """Return the last tag before this commit, or where it left main; "" where git knows of neither."""
    # A tag of this commit is no earlier version: a release is compared with the previous one.
    own = [f"--exclude={tag}" for tag in git(root, "tag", "--points-at", "HEAD").splitlines()]
    if tag := git(root, "describe", "--tags", "--abbrev=0", *own, "HEAD"):
        return tag
    head = git(root, "rev-parse", "HEAD")
    for branch in ("main", "origin/main"):
        if (base := git(root, "merge-base", "HEAD", branch)) and base != head:
            return base
    return ""


def committed(root: Path, revision: str) -> bytes | None:
    """Return the descriptor set of a revision; None where it has none."""
    command = ["git", "show", f"{revision}:{DESCRIPTOR_SET}"]
    try:
        found = subprocess.run(command, cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return found.stdout if found.returncode == 0 else None


def git(root: Path, *arguments: str) -> str:
    """Return git's output; "" if it fails or is missing."""
    try:
        found = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def what_breaks(protos: Path, earlier: bytes) -> list[str]:
    """Return a line for each change of the contracts in `protos` that would break a peer with the `earlier` ones."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "earlier.binpb"
        image.write_bytes(earlier)
        command = [str(BUF), "breaking", "--against", str(image)]
        found = subprocess.run(command, cwd=protos, capture_output=True, text=True, check=False)
    # 100: something breaks. Anything else is no comparison.
    if found.returncode not in (0, 100):
        sys.exit(f"buf breaking: {found.stderr.strip()}")
    return found.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
