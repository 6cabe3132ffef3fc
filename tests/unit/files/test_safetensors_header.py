"""Headers of safetensors files: oversized numbers are rejected before any arithmetic."""

import json
from typing import Any

from pentimento.files.safetensors_header import TensorEntry, judge_safetensors
from tests.support.refusals import wrong_refusals


def file_of(header: dict[str, Any] | str, data_bytes: int = 8) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def entry(shape: str, offsets: str = "[0, 8]") -> str:
    return f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}}}'


LONG = "9" * 4000


def test_header_that_accounts_for_all_bytes_is_read() -> None:
    assert judge_safetensors(file_of(entry("[2, 1]"))).tensors == {"a": TensorEntry("F32", (2, 1))}


WRONG = [
    (entry("[" + ",".join([LONG] * 20_000) + "]"), "a number of 4000 digits, at most 19 are taken"),
    (entry("[2]", f"[0, {LONG}]"), "a number of 4000 digits"),
    (entry("[2]", f"[-{LONG}, 8]"), "a number of 4001 digits"),
    (entry("[" + ",".join(["9" * 19] * 200_000) + "]"), "entry of tensor|do not match its shape"),
    (entry("[true, 2]"), "do not match its shape"),
    (entry("[2, 1.0]"), "do not match its shape"),
    (entry("[2, -1]"), "do not match its shape"),
    ("[" * 100_000, "not JSON"),
]


def test_header_with_numbers_that_no_tensor_has_is_refused() -> None:
    assert wrong_refusals(ValueError, lambda header: judge_safetensors(file_of(header)), WRONG) == []
