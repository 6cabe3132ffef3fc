"""What a process that imports the networks alone has, and what it can still import later."""

import subprocess
import sys

import torch

from pentimento.diffusion.lean_imports import _compiler_asked_later, import_networks_alone

# A process of its own: imports cannot be undone.
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


def test_nothing_is_imported_but_the_networks_and_the_rest_where_it_is_asked_for() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=150)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["[]", "torch.compiler T5EncoderModel peft"]


def test_a_function_that_is_kept_from_the_compiler_is_called_with_what_it_is_given() -> None:
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
