"""Write a CycloneDX SBOM of the Python packages in each image.

    python scripts/sbom.py --out build/sbom

The packages are those that the image's extras require, directly or not, in this environment. For the images of a GPU
run it where the CUDA build of torch is installed. Every version must be the one pinned in `constraints`, or by the
package that requires it. Each fault is a line on standard error; with any, nothing is written and the exit code is 1.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from deploy.requirements import requirements_of  # noqa: E402

CONSTRAINTS = ROOT / "constraints"
# What `deploy/Dockerfile` installs in each target; `frontdoor-c2pa` is the frontdoor built with C2PA=1.
IMAGES = {
    "controller": ["controller"],
    "frontdoor": ["frontdoor"],
    "frontdoor-c2pa": ["frontdoor", "c2pa"],
    "edge": ["edge"],
    "vectordb_gateway": ["gateway"],
    "cli": ["cli"],
    "embedder": ["embedder"],
    "discriminator": ["embedder", "discriminator"],
    "unet_worker": ["embedder", "worker"],
    "controlnet_svc": ["embedder", "controlnets"],
}


class UnpinnedPackage(Exception):
    """An image would have a package whose version nothing fixes, or another version than the pin."""


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    """As pinned: without the label of a build, such as `+cpu`."""
    license: str
    requires: frozenset[str]


def pins(folder: Path = CONSTRAINTS) -> dict[str, str]:
    """Return the version of every pinned package, by its canonical name."""
    found = {}
    for file in sorted(folder.glob("*.txt")):
        for line in file.read_text().splitlines():
            name, equals, version = line.partition("==")
            if equals and not line.startswith("#"):
                found[canonicalize_name(name)] = version.strip()
    return found


def packages_of(requirements: Iterable[str], pinned: Mapping[str, str]) -> dict[str, Package]:
    """Return the packages that the requirements bring into this environment, by canonical name."""
    waiting = [Requirement(text) for text in requirements]
    exact = dict(pinned)
    requires: dict[str, set[str]] = {}
    seen = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        requires.setdefault(name, set())
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for needed in needs(installed(name), extra):
                requires[name] |= {canonicalize_name(needed.name)} - {name}
                for specifier in needed.specifier:
                    if specifier.operator == "==" and not specifier.version.endswith("*"):
                        exact.setdefault(canonicalize_name(needed.name), specifier.version)
                waiting.append(needed)
    return {name: checked(name, exact, frozenset(requires[name])) for name in sorted(requires)}


def needs(package: Distribution, extra: str) -> Iterator[Requirement]:
    """Yield what the package requires here with the extra; an empty one is for its plain requirements."""
    for text in package.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None:
            applies = extra == ""
        else:
            plain = requirement.marker.evaluate({"extra": ""})
            applies = plain if extra == "" else not plain and requirement.marker.evaluate({"extra": extra})
        if applies:
            yield requirement


def installed(name: str) -> Distribution:
    """Return the package's metadata; raise `UnpinnedPackage` if it is not installed."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise UnpinnedPackage(f"{name} is not installed: `make setup`") from None


def checked(name: str, exact: Mapping[str, str], requires: frozenset[str]) -> Package:
    """Return the installed package; raise `UnpinnedPackage` unless its version is the fixed one."""
    package = installed(name)
    version = Version(package.version).public
    if name not in exact:
        raise UnpinnedPackage(f"{name} {version} is not pinned in constraints")
    if Version(exact[name]).public != version:
        raise UnpinnedPackage(f"{name} {version} is installed, and {exact[name]} is pinned")
    return Package(package.metadata["Name"], version, license_of(package), requires)


def license_of(package: Distribution) -> str:
    """Return the licence that the package states: an SPDX expression, a classifier's name, or an empty string."""
    expression = package.metadata.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [text for text in package.metadata.get_all("Classifier") or [] if text.startswith("License ::")]
    if classifiers:
        return str(classifiers[-1]).rpartition(" :: ")[2]
    stated = str(package.metadata.get("License") or "").strip()
    return stated if "\n" not in stated else ""


def bom_of(image: str, packages: Mapping[str, Package]) -> Bom:
    """Return the image's SBOM, with which package requires which."""
    licenses = LicenseFactory()
    components = {}
    for name, package in packages.items():
        given = [licenses.make_from_string(package.license)] if package.license else []
        url = PackageURL("pypi", None, name, package.version)
        components[name] = Component(
            name=package.name, version=package.version, purl=url, bom_ref=str(url), licenses=given,
            type=ComponentType.LIBRARY,
        )  # fmt: skip
    bom = Bom(components=components.values())
    root = Component(name=f"pentimento/{image}", type=ComponentType.CONTAINER, bom_ref=f"image:{image}")
    bom.metadata.component = root
    bom.register_dependency(root, components.values())
    for name, package in packages.items():
        bom.register_dependency(components[name], [components[needed] for needed in package.requires])
    return bom


def main() -> int:
    """Write `IMAGE.cdx.json` for each image."""
    parser = argparse.ArgumentParser(description="Write a CycloneDX SBOM of the Python packages in each image.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sbom", help="Folder of the files")
    out = parser.parse_args().out
    boms, faults = {}, set()
    for image, extras in IMAGES.items():
        try:
            boms[image] = bom_of(image, packages_of(requirements_of(extras), pins()))
        except UnpinnedPackage as fault:
            faults.add(str(fault))
    for fault in sorted(faults):
        print(fault, file=sys.stderr)
    if faults:
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for image, bom in boms.items():
        file = out / f"{image}.cdx.json"
        file.write_text(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))
        print(f"{file}: {len(bom.components)} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
