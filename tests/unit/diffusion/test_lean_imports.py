"""Test a process that imports the networks alone: the modules it has, and the ones it can import later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pentimento.diffusion.lean_imports import _compiler_asked_later, import_networks_alone

# Run in a separate process: imports cannot be undone.
SCRIPT = """
import sys
from pentimento.diffusion.lean_imports import UNUSED_LIBRARIES, import_networks_alone
import_networks_alone()
assert "diffusers.models.unets.unet_2d_condition" in sys.modules
assert "diffusers.models.controlnets.controlnet_sd3" in sys.modules
print([name for name in (*UNUSED_LIBRARIES, "sympy") if name in sys.modules])
import boto3, peft, scipy.stats, torch, torch.compiler
from transformers.models.t5.modeling_t5 import T5EncoderModel
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
print(torch.compiler.disable.__module__, T5EncoderModel.__name__, peft.__name__)
"""


IMPORT = """
import logging, sys
logging.basicConfig(format="%(message)s")
from pentimento.diffusion.lean_imports import import_networks_alone
import_networks_alone()
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
print(UNet2DConditionModel.__name__, [name for name in sys.argv[1:] if name in sys.modules])
"""


def import_with(directory: Path, name: str, code: str) -> subprocess.CompletedProcess[str]:
    """Import the networks in an environment that has one library more."""
    for path, text in (
        (f"{name}/__init__.py", code),
        (f"{name}/ops.py", ""),
        (f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"),
    ):
        directory.joinpath(path).parent.mkdir(exist_ok=True)
        directory.joinpath(path).write_text(text)
    paths = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", IMPORT, name, "transformers"]
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=environment)


@pytest.mark.slow
def test_installed_torchvision_is_not_imported(tmp_path: Path) -> None:
    ended = import_with(tmp_path, "torchvision", "raise ValueError('imported')")

    assert (ended.returncode, ended.stdout) == (0, "UNet2DConditionModel []\n"), ended.stderr


@pytest.mark.slow
def test_library_that_needs_compiler_imports_everything(tmp_path: Path) -> None:
    ended = import_with(tmp_path, "xformers", "from torch._dynamo.utils import is_compile_supported")

    assert (ended.returncode, ended.stdout) == (0, "UNet2DConditionModel ['xformers', 'transformers']\n"), ended.stderr
    assert "diffusers is imported whole" in ended.stderr and "torch._dynamo" in ended.stderr


@pytest.mark.slow
def test_only_networks_are_imported_until_more_is_needed() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=150)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["[]", "torch.compiler T5EncoderModel peft"]


def test_function_excluded_from_compiler_is_called_with_its_arguments() -> None:
    disable = torch.compiler.disable
    with _compiler_asked_later():

        @torch.compiler.disable()
        def first(a: int, *, b: int) -> int:
            return a - b

        @torch.compiler.disable
        def second(a: int, b: int) -> int:
            return a - b

    assert torch.compiler.disable is disable
    assert (first(5, b=2), second(7, 3), first.__name__) == (3, 4, "first")


def test_a_process_that_has_diffusers_already_keeps_it_whole() -> None:
    import diffusers

    import_networks_alone()

    assert "transformers" in sys.modules
    assert diffusers.StableDiffusionPipeline.__module__.startswith("diffusers.pipelines.")
