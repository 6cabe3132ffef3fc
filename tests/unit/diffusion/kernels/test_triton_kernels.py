"""Run the tests of the Triton kernels, `interpreted_kernels.py`, in a process with the interpreter: Triton decides at
its first import, and torch imports it for itself."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.runs.machine import ROOT


@pytest.mark.parametrize(("capability", "element"), [(80, "fp16"), (90, "bf16"), (80, "fp32")])
def test_the_kernels_compile_for_gpus(capability: int, element: str) -> None:
    """Compile to machine code; running it takes a GPU."""
    triton = pytest.importorskip("triton", reason="Triton is not installed: its kernels are not shown to compile")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pentimento.diffusion.kernels import triton_kernels as kernels

    tensor, target = f"*{element}", GPUTarget("cuda", capability, 32)
    tile = {"PIXELS": 64, "CHANNELS": 64}
    counts = "pixel_count channel_count group_channels group_count part_count width element_count"
    sources: dict[Any, tuple[str, dict[str, Any]]] = {
        kernels._moments: ("means deviations", {"SHIFTED": True, **tile}),
        kernels._merged: ("means deviations group_means group_scales", {"PARTS": 64, "MEMBERS": 64, "PIXELS": 64}),
        kernels._normalise: ("group_means group_scales", {"SHIFTED": True, "ACTIVATED": True, **tile}),
        kernels._joined: ("", {"BIASED": True, "BLOCK": 4096}),
        kernels._added_normalised: ("", {"WIDTH": 2048}),
        kernels._gate: ("", {"BLOCK": 4096}),
    }
    for kernel, (sums, constants) in sources.items():
        signature = dict.fromkeys(kernel.arg_names, tensor) | dict.fromkeys(sums.split(), "*fp32")
        signature |= {name: "i32" for name in counts.split() if name in kernel.arg_names} | dict.fromkeys(
            constants, "constexpr"
        )
        signature |= {"epsilon": "fp32"} if "epsilon" in signature else {}
        values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature=signature, constexprs=values)
        compiled = triton.compile(source, target=target, options={"num_warps": 8, "num_stages": 3})
        assert compiled.asm["cubin"]
        # The shared memory of a multiprocessor of the smaller GPU.
        assert compiled.metadata.shared <= 163 * 1024


def test_interpreted_kernels_pass() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: its kernels are not shown to be right")
    tests = Path(__file__).with_name("interpreted_kernels.py")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout
