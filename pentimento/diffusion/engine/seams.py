"""What single requests bring along, put together by rows: residuals of ControlNets and LoRAs.

Rows of requests that bring none are zero, which changes nothing of them. Without anybody who brings one the forward
pass takes none at all.
"""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals, LowRankUpdate, PerSampleAdapters


def stack_residuals(
    parts: Sequence[ControlResiduals | None], rows_each: int, row_count: int
) -> ControlResiduals | None:
    """Raises ValueError when two requests' residuals are not of one shape, or not of `rows_each` rows."""
    example = next((part for part in parts if part is not None), None)
    if example is None:
        return None

    def stack(pick: Callable[[ControlResiduals], Tensor]) -> Tensor:
        return _stack([pick(part) if part else None for part in parts], pick(example), rows_each, row_count)

    def down(index: int) -> Tensor:
        return stack(lambda part: part.down_block_residuals[index])

    def block(index: int) -> Tensor:
        return stack(lambda part: part.block_residuals[index])

    mid = stack(lambda part: _present(part.mid_block_residual)) if example.mid_block_residual is not None else None
    return ControlResiduals(
        tuple(down(index) for index in range(len(example.down_block_residuals))),
        mid,
        tuple(block(index) for index in range(len(example.block_residuals))),
    )


def _present(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("residuals of one request have a mid block, another's have none")
    return tensor


def _stack(parts: Iterable[Tensor | None], example: Tensor, rows_each: int, row_count: int) -> Tensor:
    rows = example.new_zeros((row_count, *example.shape[1:]))
    for part, target in zip(parts, rows.split(rows_each), strict=False):
        if part is not None:
            if part.shape != target.shape:
                raise ValueError(f"residuals of shape {list(part.shape)}, wanted {list(target.shape)}")
            target.copy_(part)
    return rows


def stack_adapters(
    parts: Sequence[PerSampleAdapters | None], rows_each: int, row_count: int
) -> PerSampleAdapters | None:
    """Each request's single row for all of its rows; ranks are padded with zeros to the highest."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    names = sorted({name for part in present for name in part.updates})
    return PerSampleAdapters({name: _stack_updates(parts, name, rows_each, row_count) for name in names})


def _stack_updates(
    parts: Sequence[PerSampleAdapters | None], name: str, rows_each: int, row_count: int
) -> LowRankUpdate:
    updates = [part.updates.get(name) if part is not None else None for part in parts]
    present = [update for update in updates if update is not None]
    rank = max(update.down.shape[1] for update in present)
    inputs, outputs = present[0].down.shape[2], present[0].up.shape[1]
    down = present[0].down.new_zeros((row_count, rank, inputs))
    up = present[0].up.new_zeros((row_count, outputs, rank))
    for slot, update in enumerate(updates):
        if update is not None:
            rows = slice(slot * rows_each, (slot + 1) * rows_each)
            down[rows, : update.down.shape[1]] = update.down
            up[rows, :, : update.up.shape[2]] = update.up
    return LowRankUpdate(down, up)
