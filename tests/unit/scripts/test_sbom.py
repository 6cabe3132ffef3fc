"""The SBOM lists what an image installs, directly or not, with the pinned versions only."""

import json
import re
from pathlib import Path

import pytest
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion

from deploy.requirements import requirements_of
from scripts.sbom import IMAGES, ROOT, UnpinnedPackage, bom_of, packages_of, pins

PINS = {"sbom-server": "2.1", "sbom-parser": "0.4", "sbom-speedups": "1.0"}


@pytest.fixture(autouse=True)
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install three packages: a server, its parser, and what the parser's extra `fast` requires."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "sbom_server", "2.1", "License-Expression: MIT", "Requires-Dist: Sbom.Parser[fast]>=0.3",
            'Requires-Dist: sbom-absent; sys_platform == "none"')  # fmt: skip
    install(tmp_path, "sbom_parser", "0.4+cpu", "Classifier: License :: OSI Approved :: BSD License",
            "Provides-Extra: fast", "Provides-Extra: slow", 'Requires-Dist: sbom-speedups; extra == "fast"',
            'Requires-Dist: sbom-absent; extra == "slow"')  # fmt: skip
    install(tmp_path, "sbom_speedups", "1.0")
    install(tmp_path, "sbom_bundle", "1.0", "Requires-Dist: sbom-speedups==1.0")


def install(folder: Path, name: str, version: str, *fields: str) -> None:
    home = folder / f"{name}-{version}.dist-info"
    home.mkdir()
    lines = ["Metadata-Version: 2.4", f"Name: {name.replace('_', '-')}", f"Version: {version}", *fields]
    (home / "METADATA").write_text("\n".join(lines) + "\n")


def test_bom_of_image_lists_packages_versions_licences_and_dependencies() -> None:
    packages = packages_of(["sbom-server"], PINS)

    bom = json.loads(make_outputter(bom_of("edge", packages), OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())

    assert {(part["name"], part["version"], part["purl"]) for part in bom["components"]} == {
        ("sbom-server", "2.1", "pkg:pypi/sbom-server@2.1"),
        ("sbom-parser", "0.4", "pkg:pypi/sbom-parser@0.4"),
        ("sbom-speedups", "1.0", "pkg:pypi/sbom-speedups@1.0"),
    }
    assert {part["name"]: part.get("licenses") for part in bom["components"]} == {
        "sbom-server": [{"license": {"id": "MIT"}}],
        "sbom-parser": [{"license": {"name": "BSD License"}}],
        "sbom-speedups": None,
    }
    assert {part["ref"]: part.get("dependsOn", []) for part in bom["dependencies"]} == {
        "image:edge": ["pkg:pypi/sbom-parser@0.4", "pkg:pypi/sbom-server@2.1", "pkg:pypi/sbom-speedups@1.0"],
        "pkg:pypi/sbom-server@2.1": ["pkg:pypi/sbom-parser@0.4"],
        "pkg:pypi/sbom-parser@0.4": ["pkg:pypi/sbom-speedups@1.0"],
        "pkg:pypi/sbom-speedups@1.0": [],
    }


@pytest.mark.parametrize(
    ("requirement", "pinned", "fault"),
    [
        ("sbom-server", {"sbom-server": "2.1", "sbom-parser": "0.4"}, "sbom-speedups 1.0 is not pinned in constraints"),
        ("sbom-server", {**PINS, "sbom-server": "2.0"}, "sbom-server 2.1 is installed, and 2.0 is pinned"),
        ("sbom-absent", PINS, "sbom-absent is not installed: `make setup`"),
    ],
)
def test_packages_of_unpinned_requirement_is_rejected(requirement: str, pinned: dict[str, str], fault: str) -> None:
    with pytest.raises(UnpinnedPackage) as raised:
        packages_of([requirement], pinned)

    assert str(raised.value) == fault


def test_packages_of_package_that_pins_its_requirement_exactly_needs_no_second_pin() -> None:
    assert list(packages_of(["sbom-bundle"], {"sbom-bundle": "1.0"})) == ["sbom-bundle", "sbom-speedups"]


def test_packages_of_edge_image_have_its_server_and_no_models() -> None:
    names = set(packages_of(requirements_of(IMAGES["edge"]), pins()))

    assert {"grpcio", "protobuf", "starlette", "uvicorn", "httptools", "h11", "anyio", "botocore"} <= names
    assert not names & {"torch", "numpy", "sqlalchemy", "pytest"}


def test_images_are_the_targets_of_the_dockerfile() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)

    assert {*IMAGES} - {"frontdoor-c2pa"} == {*stages} - {
        "backup", "base", "requirements", "code", "profiles", "tiny_models", "service", "models",
    }  # fmt: skip
