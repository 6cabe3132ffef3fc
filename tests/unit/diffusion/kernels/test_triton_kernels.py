"""Runs the tests of the Triton kernels, `interpreted_kernels.py`, in a process whose Triton interprets: that is settled
when Triton is first imported, and torch imports it for itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.testing.machine import ROOT


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("element", ["fp16", "bf16", "fp32"])
def test_the_kernels_compile_for_gpus(capability: int, element: str) -> None:
    """As far as machine code; running it takes a GPU."""
    triton = pytest.importorskip("triton", reason="Triton is not installed: its kernels are not shown to compile")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pentimento.diffusion.kernels import triton_kernels as kernels

    tensor, target = f"*{element}", GPUTarget("cuda", capability, 32)
    sources = {
        kernels._moments: ("means deviations", "group_size", {"BLOCK": 4096}),
        kernels._normalise: (
            "means deviations",
            "group_size pixel_count group_count part_count",
            {"PARTS": 128, "BLOCK": 4096},
        ),
        kernels._gate: ("", "width element_count", {"BLOCK": 4096}),
        kernels._product_gate: ("", "row_count width depth", {"ROWS": 128, "COLUMNS": 64, "DEPTH": 32}),
    }
    for kernel, (sums, numbers, constants) in sources.items():
        signature = dict.fromkeys(kernel.arg_names, tensor) | dict.fromkeys(sums.split(), "*fp32")
        signature |= dict.fromkeys(numbers.split(), "i32") | dict.fromkeys(constants, "constexpr")
        signature |= {"epsilon": "fp32"} if "epsilon" in signature else {}
        values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature=signature, constexprs=values)
        compiled = triton.compile(source, target=target, options={"num_warps": 8, "num_stages": 3})
        assert compiled.asm["cubin"]
        # What a multiprocessor of the smaller of the two has.
        assert compiled.metadata.shared <= 163 * 1024


def test_the_kernels_compute_what_they_should() -> None:
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
