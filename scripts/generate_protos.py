"""Generate the Python code, the typed stubs and the descriptor set from `protos/`.

    python scripts/generate_protos.py            # writes them
    python scripts/generate_protos.py --check    # exits 1 and lists the files that are out of date

Generated code mirrors its contract's path: `protos/pentimento/api/image/v1/x.proto` gives
`pentimento/api/image/v1/x_pb2.py`.
"""

import argparse
import importlib.resources
import os
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
DESCRIPTOR_SET = "protos/pentimento.binpb"


def contracts() -> list[str]:
    """Return every contract's path below `protos/`, sorted so that the descriptor set is reproducible."""
    return sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))


def generate(target: Path) -> list[str]:
    """Write all generated files below `target`; return their paths, relative to it."""
    # protoc finds the mypy plug-ins on the PATH; a venv that is not activated is not on it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (target / "protos").mkdir(parents=True, exist_ok=True)
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{well_known}", "--include_imports"]
    arguments += [f"--{kind}_out={target}" for kind in ("python", "grpc_python")]
    # The public client wheel needs no typing helper at run time: plain .pyi files only.
    arguments += [f"--mypy_out=quiet:{target}", f"--mypy_grpc_out=quiet:{target}"]
    arguments += [f"--descriptor_set_out={target / DESCRIPTOR_SET}", *contracts()]
    if protoc.main(arguments) != 0:
        sys.exit("generate_protos: protoc failed")
    for contract in contracts():
        for package in Path(contract).parents:
            if str(package) not in (".", "pentimento"):
                (target / package / "__init__.py").touch()
    drop_empty_service_modules(target)
    return sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())


def drop_empty_service_modules(target: Path) -> None:
    """protoc writes a `_pb2_grpc.py` also for contracts without a service."""
    for module in target.rglob("*_pb2_grpc.py"):
        if "Stub" not in module.read_text():
            module.unlink()
            module.with_suffix(".pyi").unlink(missing_ok=True)


def outdated(fresh: Path, written: list[str]) -> list[str]:
    """Return generated files with a committed copy that differs, is missing, or no longer has a contract."""
    wrong = [
        name
        for name in written
        if not (ROOT / name).exists() or (ROOT / name).read_bytes() != (fresh / name).read_bytes()
    ]
    committed = {
        str(path.relative_to(ROOT)) for path in (ROOT / "pentimento").rglob("*_pb2*") if path.suffix in (".py", ".pyi")
    }
    return wrong + sorted(committed - set(written))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when the committed code is out of date"
    )
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        written = generate(fresh)
        wrong = outdated(fresh, written)
        if check and wrong:
            sys.exit("generate_protos: out of date, run `make protos`:\n  " + "\n  ".join(wrong))
        if not check:
            for name in written:
                (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(fresh / name, ROOT / name)
            for name in set(wrong) - set(written):
                (ROOT / name).unlink()


if __name__ == "__main__":
    main()
