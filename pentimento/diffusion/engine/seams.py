"""Stack the ControlNet residuals of single requests into the rows of a batch.

Rows of requests without residuals are zero, which leaves their prediction unchanged. If no request has residuals, the
forward pass receives none.
"""

from collections.abc import Iterable, Sequence

from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals


def stack_residuals(
    parts: Sequence[ControlResiduals | None], rows_each: int, row_count: int
) -> ControlResiduals | None:
    """Return the residuals of all rows, for a transformer only the blocks that every part has by now; None if no part
    has any. Residuals of one request that fills all rows are returned without a copy: for SDXL they are 108 MiB. Raises
    ValueError if residuals of two requests differ in blocks or shape, or do not have `rows_each` rows."""
    present = [part if part is not None and _blocks(part) != _NO_BLOCKS else None for part in parts]
    example = next((part for part in present if part is not None), None)
    if example is None:
        return None
    if len(parts) == 1 and rows_each == row_count:
        _check_rows(example, rows_each)
        return example
    for part in present:
        if part is not None and _blocks(part) != _blocks(example):
            raise ValueError(f"residuals for {_blocks(part)} (down, mid, other) blocks, wanted {_blocks(example)}")
    there = min(len(part.tensors) for part in present if part is not None)
    flat = [(None,) * there if part is None else part.tensors[:there] for part in present]
    stacked = [
        _stack(column, first, rows_each, row_count)
        for column, first in zip(zip(*flat, strict=True), example.tensors[:there], strict=True)
    ]
    down, mid, blocks = _blocks(example)
    behind = tuple(stacked[down + mid :])
    return ControlResiduals(tuple(stacked[:down]), stacked[down] if mid else None, behind, blocks - len(behind))


_NO_BLOCKS = (0, 0, 0)


def _blocks(part: ControlResiduals) -> tuple[int, int, int]:
    """Return the numbers of down, mid and other blocks that a part has or will have residuals for. A part without any
    controls nothing at its step."""
    return len(part.down_block_residuals), int(part.mid_block_residual is not None), part.block_count


def _check_rows(part: ControlResiduals, row_count: int) -> None:
    for tensor in part.tensors:
        if tensor.shape[0] != row_count:
            raise ValueError(f"residuals of shape {list(tensor.shape)}, wanted {row_count} rows")


def _stack(parts: Iterable[Tensor | None], example: Tensor, rows_each: int, row_count: int) -> Tensor:
    rows = example.new_zeros((row_count, *example.shape[1:]))
    for part, target in zip(parts, rows.split(rows_each), strict=False):
        if part is not None:
            if part.shape != target.shape:
                raise ValueError(f"residuals of shape {list(part.shape)}, wanted {list(target.shape)}")
            target.copy_(part)
    return rows
