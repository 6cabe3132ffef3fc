"""Run ControlNets of SD3's transformer: one residual per block, reported while the next blocks are computed.

diffusers' layers run in diffusers' order, on a condition that is embedded already.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.controlnets.network import (
    ControlNetInfo,
    ControlRows,
    ControlStep,
    ResidualsSoFar,
    by_picture,
    check_rows,
    condition_rows,
    rows_of,
    unheard,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import InvalidArgument


def part_sizes(residual_count: int) -> list[int]:
    """Return the number of blocks in each partial report, first to last: one, then twice as many each time, then the
    rest. A base model has about two blocks per block of its ControlNet: while it runs the blocks of one part, the next
    part, twice as large, is computed. So it waits only for the first part, and hand-overs are few."""
    sizes: list[int] = []
    while (left := residual_count - sum(sizes)) > 0:
        sizes.append(min(left, 2 ** len(sizes)))
    return sizes


class TransformerControlNet:
    """Run diffusers' SD3ControlNetModel."""

    def __init__(self, network: Any, info: ControlNetInfo, device: torch.device, dtype: torch.dtype) -> None:
        """Change the network: attention skips signature checks."""
        self.info, self.device, self.dtype = info, device, dtype
        self.config: Mapping[str, Any] = dict(network.config)
        self._embedder = network.pos_embed_input
        skip_signature_checks(network)
        self._network = network

    @torch.inference_mode()
    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return the patches (rows, patches, width) of a latent (1 or rows, channels, height, width)."""
        rows = condition_rows(condition, self.info.condition_channels, row_count)
        embedded: Tensor = self._embedder(rows.to(self.device, self.dtype))
        return embedded

    @torch.inference_mode()
    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Return the residuals of each image's rows, scaled; call `tell` after each part but the last."""
        rows = rows_of(steps)
        config = self.config
        check_rows(rows, self.info.latent_channels, config["joint_attention_dim"], config["pooled_projection_dim"])
        patches = rows.latents.shape[2] * rows.latents.shape[3] // config["patch_size"] ** 2
        if rows.embedded.shape[1] != patches:
            raise InvalidArgument.of("condition", f"must make {patches} patches, got {rows.embedded.shape[1]}")
        blocks, awaited = self._blocks(rows), len(self._network.transformer_blocks)
        found = [ControlResiduals() for _ in steps]
        for size in part_sizes(awaited):
            awaited -= size
            part = ControlResiduals(block_residuals=tuple(islice(blocks, size)))
            found = [_followed(one, more, awaited) for one, more in zip(found, by_picture(part, steps), strict=True)]
            if awaited:
                tell(found)
        return found

    def _blocks(self, rows: ControlRows) -> Iterator[Tensor]:
        """Yield the residual of each block when it is computed."""
        network, pooled = self._network, rows.conditioning.pooled
        assert pooled is not None  # check_rows
        seen = torch.zeros_like(pooled) if self.config["force_zeros_for_pooled_projection"] else pooled
        hidden = network.pos_embed(rows.latents)
        embedding = network.time_text_embed(rows.timesteps, seen)
        states = network.context_embedder(rows.conditioning.states)
        hidden = hidden + rows.embedded
        for block, added in zip(network.transformer_blocks, network.controlnet_blocks, strict=True):
            states, hidden = block(hidden_states=hidden, encoder_hidden_states=states, temb=embedding)
            yield added(hidden)


def _followed(first: ControlResiduals, more: ControlResiduals, awaited_count: int) -> ControlResiduals:
    return replace(first, block_residuals=(*first.block_residuals, *more.block_residuals), awaited_count=awaited_count)
