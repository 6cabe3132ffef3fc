"""Tensor messages: every valid one survives the trip, every invalid one is rejected by name."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pentimento.api.tensor.v1 import tensor_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.tensors.cuda import tensor_over, tensor_to_wire
from pentimento.wire.tensors import (
    MAX_INLINE_BYTES,
    Binding,
    Dtype,
    WireTensor,
    tensor_from_proto,
    tensor_to_proto,
)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def wire_tensors(draw: st.DrawFn) -> WireTensor:
    dtype, dims = draw(st.sampled_from(Dtype)), draw(shapes)
    size = math.prod(dims) * dtype.item_size
    binding = Binding(draw(st.text(max_size=8)), draw(st.integers(0, 2**63)), draw(st.integers(0, 2**31)))
    return WireTensor(dtype, dims, draw(st.binary(min_size=size, max_size=size)), binding)


@given(tensor=wire_tensors())
def test_tensor_from_proto_of_written_tensor_returns_tensor(tensor: WireTensor) -> None:
    data = tensor_to_proto(tensor).SerializeToString()

    assert tensor_from_proto(pb.Tensor.FromString(data)) == tensor


@given(dims=shapes)
def test_tensor_from_wire_returns_same_bits(dims: tuple[int, ...]) -> None:
    types = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
    for dtype in types:
        tensor = (torch.randn(dims) * 100).to(dtype)

        again = tensor_over(tensor_to_wire(tensor))

        assert again.dtype == tensor.dtype
        assert torch.equal(again, tensor)


def test_tensor_to_wire_of_strided_view_is_row_major() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).T

    assert torch.equal(tensor_over(tensor_to_wire(tensor)), tensor)


def message(**changes: Any) -> pb.Tensor:
    return pb.Tensor(**{"dtype": pb.DTYPE_FLOAT32, "dims": [2, 2], "inline": bytes(16), **changes})


UNSOUND = [
    (message(inline=bytes(15)), "tensor.inline"),
    (message(inline=bytes(17)), "tensor.inline"),
    (message(dims=[2, 3]), "tensor.inline"),
    (message(dims=[-2, -2]), "tensor.dims"),
    (message(dims=[2**62, 2**62]), "tensor.inline"),
    (message(dims=[1] * 9, inline=bytes(4)), "tensor.dims"),
    (message(dtype=0), "tensor.dtype"),
    (message(dtype=99), "tensor.dtype"),
    (pb.Tensor(dtype=1, dims=[0]), "tensor.payload"),
    (pb.Tensor(dtype=1, dims=[4], object=pb.ObjectReference(key="k")), "tensor.payload"),
    (message(dims=[MAX_INLINE_BYTES // 4 + 1], inline=bytes(MAX_INLINE_BYTES + 4)), "tensor.inline"),
]


def test_tensor_from_proto_names_field_of_unsound_message() -> None:
    for unsound, named in UNSOUND:
        with pytest.raises(InvalidArgument) as refused:
            tensor_from_proto(unsound)
        assert refused.value.violations[0].field == named


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        ({"dims": (4,)}, "tensor.dims"),
        ({"dtypes": (Dtype.FLOAT16,)}, "tensor.dtype"),
        ({"binding": Binding("another request")}, "tensor.binding"),
    ],
)
def test_tensor_from_proto_refuses_other_tensor_than_expected(expected: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        tensor_from_proto(message(), **expected)
    assert refused.value.violations[0].field == named


def test_tensor_to_proto_refuses_large_inline_tensor() -> None:
    with pytest.raises(InvalidArgument, match=r"tensor\.inline"):
        tensor_to_proto(WireTensor(Dtype.UINT8, (MAX_INLINE_BYTES + 1,), bytes(MAX_INLINE_BYTES + 1)))


def test_tensor_from_wire_refuses_values_that_are_not_finite() -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InvalidArgument, match="finite"):
            tensor_over(tensor_to_wire(torch.tensor([1.0, value])))


def test_wire_tensors_import_no_torch() -> None:
    program = "import sys, pentimento.wire.tensors; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
