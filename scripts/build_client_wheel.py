"""Build the wheel for clients that need only the contracts.

    python scripts/build_client_wheel.py [--output dist]    # prints the path of the wheel

`pentimento_protos-<version>-py3-none-any.whl` holds the generated modules with their typed stubs and the descriptor set
(`pentimento/protos.binpb`), and depends on protobuf and grpcio only. `pentimento` is a namespace package in it: the
library brings the same modules and an `__init__.py`, so an environment needs one of the two, never both.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DESCRIPTOR_SET = ROOT / "protos" / "pentimento.binpb"
README = """# Pentimento's contracts

Protobuf messages and gRPC stubs of Pentimento, generated from its `.proto` files; type stubs and the descriptor set.
The package `pentimento` (the suite itself) holds the same modules: install one of the two.

```python
import grpc
from pentimento.api.image.v1 import image_service_pb2, image_service_pb2_grpc

stub = image_service_pb2_grpc.ImageServiceStub(grpc.insecure_channel("127.0.0.1:50400"))
for model in stub.ListModels(image_service_pb2.ListModelsRequest()).models:
    print(model.name)
```
"""


def project_version() -> str:
    """The contracts are released with the suite, under its version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def oldest_runtimes() -> tuple[str, str]:
    """Return the (grpcio, protobuf) versions of the generated code, which refuses to run on older ones."""
    stubs = (ROOT / "pentimento/api/image/v1/image_service_pb2_grpc.py").read_text()
    messages = (ROOT / "pentimento/api/image/v1/image_service_pb2.py").read_text()
    grpcio = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", stubs)
    protobuf = re.search(r"^# Protobuf Python Version: ([\d.]+)$", messages, re.MULTILINE)
    if grpcio is None or protobuf is None:
        sys.exit("build_client_wheel: the generated code does not name its versions; run `make protos`")
    return grpcio[1], protobuf[1]


def write_pyproject(target: Path) -> None:
    grpcio, protobuf = oldest_runtimes()
    target.joinpath("pyproject.toml").write_text(f"""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "pentimento-protos"
version = "{project_version()}"
description = "Messages and gRPC stubs of Pentimento's services."
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE"]
dependencies = ["grpcio>={grpcio}", "protobuf>={protobuf}"]

[tool.setuptools.packages.find]
include = ["pentimento*"]

[tool.setuptools.package-data]
"*" = ["py.typed", "*.pyi", "*.binpb"]
""")


def write_sources(target: Path) -> None:
    """Copy only generated code; below a namespace package the package carries the `py.typed` (PEP 561)."""
    for module in sorted((ROOT / "pentimento").glob("api/*/v1/*_pb2*.py*")):
        if module.suffix not in (".py", ".pyi"):
            continue
        copy = target / module.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, copy)
        for package in (copy.parent, copy.parent.parent, copy.parent.parent.parent):
            (package / "__init__.py").touch()
    (target / "pentimento" / "api" / "py.typed").touch()
    shutil.copyfile(DESCRIPTOR_SET, target / "pentimento" / "protos.binpb")
    shutil.copyfile(ROOT / "LICENSE", target / "LICENSE")
    (target / "README.md").write_text(README)


def build(output: Path) -> Path:
    """Build the wheel into `output`, and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        write_pyproject(source)
        write_sources(source)
        builder = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
        command = [*builder, "--outdir", str(output.resolve()), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"build_client_wheel: the build failed:\n{done.stdout}{done.stderr}")
    return output / f"pentimento_protos-{project_version()}-py3-none-any.whl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder the wheel is written to")
    print(build(parser.parse_args().output))


if __name__ == "__main__":
    main()
