"""The product imports without the lab; features of the lab fail with one line that names the package to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HIDDEN = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "without_lab")}
INSTALL = "needs `pip install 'pentimento[lab]'`"
# Packages without torch.
PACKAGES = (
    *("cli", "clients", "dataplane", "domain", "files", "policies", "rpc", "sdk", "service", "settings", "supervisor"),
    *("stores", "telemetry"),
)
SERVICES = ("controller", "edge", "frontdoor", "vectordb_gateway")
pytestmark = pytest.mark.slow
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print(sorted(name for name in sys.modules if name.startswith("lab")), "torch" in sys.modules)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT, env=HIDDEN)


def test_product_without_the_lab_imports() -> None:
    names = [*(f"pentimento.{name}" for name in PACKAGES), *(f"services.{name}" for name in SERVICES)]

    done = run("-c", IMPORT_ALL, *names)

    assert done.stdout.strip() == "[] False", done.stderr


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["simulate", "scenario.toml"], "pentimento simulate"),
        (["bench", "load", "--rate", "1"], "pentimento bench load"),
        (["bench", "trace-study", "log.txt"], "pentimento bench trace-study"),
        (["serve", "emulated-worker"], "pentimento serve emulated-worker"),
        (["up", "--emulate", __file__], "pentimento up --emulate"),
        (["up", "--policy", "proteus"], "--policy proteus"),
    ],
)
def test_lab_command_without_lab_names_package_to_install(arguments: list[str], asked: str) -> None:
    done = run("-m", "pentimento.cli", *arguments)

    assert (done.returncode, done.stderr.splitlines()) == (2, [f"pentimento: `{asked}` {INSTALL}"])


def test_controller_with_lab_policy_names_package_to_install() -> None:
    done = run("-m", "services.controller", "--allocator", "static-cascade", "--listen", "unix:/nowhere")

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"`--allocator static-cascade` {INSTALL}")


def test_help_without_the_lab_names_its_commands() -> None:
    done = run("-m", "pentimento.cli", "bench", "--help")

    assert done.returncode == 0
    assert "play a workload on a running suite" in done.stdout
