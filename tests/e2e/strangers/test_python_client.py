"""Test a Python client that has grpcio, protobuf and the contracts, but none of the suite's packages."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.strangers.environment import ROOT, fresh_python, run

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXAMPLE = ROOT / "examples" / "python" / "generate.py"
INSPECT_WHEEL = """
import importlib.metadata, importlib.resources, pkgutil
import google.protobuf.descriptor_pb2 as descriptor
import pentimento
modules = [found.name for found in pkgutil.walk_packages(pentimento.__path__, "pentimento.")]
for name in modules:
    __import__(name)
described = descriptor.FileDescriptorSet.FromString(
    importlib.resources.files("pentimento").joinpath("protos.binpb").read_bytes())
print(*sorted(file.package for file in described.file if file.package.startswith("pentimento.")))
print(*sorted(name for name in modules if name.endswith("_pb2_grpc")))
print(*sorted(one.metadata["Name"].lower().replace("_", "-") for one in importlib.metadata.distributions()))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    return Path(run([sys.executable, ROOT / "scripts" / "build_client_wheel.py", "--output", folder], ROOT).strip())


def test_client_wheel_brings_every_contract_and_nothing_but_grpcio_and_protobuf(wheel: Path, tmp_path: Path) -> None:
    python = fresh_python(tmp_path / "venv", wheel)

    packages, stubs, installed = run([python, "-I", "-c", INSPECT_WHEEL], tmp_path).splitlines()

    # Clients of the suite do not call KEDA's contracts.
    contracts = sorted((ROOT / "protos").glob("pentimento/api/*/v1/*.proto"))
    with_service = [path for path in contracts if path.stem.endswith("_service")]
    assert packages.split() == sorted(".".join(path.parent.relative_to(ROOT / "protos").parts) for path in contracts)
    assert stubs.split() == sorted(
        ".".join((*path.parent.relative_to(ROOT / "protos").parts, f"{path.stem}_pb2_grpc")) for path in with_service
    )
    assert set(installed.split()) == {"grpcio", "pentimento-protos", "protobuf", "typing-extensions"}


def test_generated_stubs_return_an_image(suite_address: str, tmp_path: Path) -> None:
    python = fresh_python(tmp_path / "venv", "grpcio", "protobuf", "grpcio-tools")
    contracts = [str(path.relative_to(ROOT / "protos")) for path in (ROOT / "protos").rglob("*.proto")]
    compiler = [python, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}"]
    run([*compiler, f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", *contracts], tmp_path)
    shutil.copyfile(EXAMPLE, tmp_path / EXAMPLE.name)

    arguments = ["a red circle on a white background", "picture.png", "--address", suite_address]
    said = run([python, EXAMPLE.name, *arguments], tmp_path).splitlines()

    assert said[0].startswith("accepted ")
    assert said[-1].startswith("completed picture.png: ")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG_SIGNATURE)

    refused = subprocess.run(
        [python, EXAMPLE.name, "", *arguments[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("failed: INVALID_ARGUMENT: prompt")
    assert len(refused.stderr.splitlines()) == 1
