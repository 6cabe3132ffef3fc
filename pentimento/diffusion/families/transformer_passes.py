"""Run an SD3Transformer2DModel's forward pass in parts, over diffusers' blocks in their order.

A ControlNet's residuals are added after the blocks (Katz, section 9.7): `encode` runs the first block, `advance` the
blocks with residuals that have arrived, `decode` the rest. The results are the same bits as diffusers' pass. What the
blocks after the first add to its image states is a step's deep features, which a later step may add to its own.
"""

from typing import Any, cast

import torch
from torch import Tensor

from pentimento.diffusion.families.model import ControlResiduals, DenoiserEncoding, DenoiserInput, residual_behind


class TransformerPasses:
    """Run parts of one network's pass. Its blocks stay diffusers' modules: patched weights and hooks take effect."""

    def __init__(self, transformer: Any) -> None:
        """Wrap a `transformer` that `covers_transformer` accepts."""
        self._transformer = transformer

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the first block's image and text states, and the embedding of timesteps and pooled texts."""
        network, texts = self._transformer, inputs.conditioning
        hidden = network.pos_embed(inputs.latents).contiguous()
        embedding = network.time_text_embed(inputs.timesteps.expand(inputs.latents.shape[0]), texts.pooled)
        states = network.context_embedder(texts.states)
        states, hidden = _block(network.transformer_blocks[0], hidden, states, embedding)
        return DenoiserEncoding((hidden, states, embedding), 1, len(network.transformer_blocks))

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding after `blocks_done` blocks."""
        hidden, states, embedding = encoding.tensors
        for index in range(encoding.blocks_done, blocks_done):
            hidden = self._controlled(index - 1, hidden, inputs.residuals)
            states, hidden = _block(self._transformer.transformer_blocks[index], hidden, states, embedding)
        return DenoiserEncoding((hidden, states, embedding), blocks_done, encoding.block_count)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction, shaped as the latents."""
        hidden, embedding = self._through(inputs, encoding)
        return self._finish(inputs, hidden, embedding)

    def decode_and_keep(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> tuple[Tensor, Tensor]:
        """Return the prediction, and what the remaining blocks added to the image states (rows, patches, width)."""
        hidden, embedding = self._through(inputs, encoding)
        return self._finish(inputs, hidden, embedding), hidden - encoding.tensors[0]

    def decode_from(self, inputs: DenoiserInput, encoding: DenoiserEncoding, features: Tensor) -> Tensor:
        """Return the prediction with the remaining blocks' addition of an earlier step."""
        hidden, _, embedding = encoding.tensors
        return self._finish(inputs, hidden + features, embedding)

    def _through(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> tuple[Tensor, Tensor]:
        # No residual is added after the last block, which returns no text states.
        hidden, _, embedding = self.advance(inputs, encoding, encoding.block_count).tensors
        return hidden, embedding

    def _finish(self, inputs: DenoiserInput, hidden: Tensor, embedding: Tensor) -> Tensor:
        network = self._transformer
        hidden = network.proj_out(network.norm_out(hidden, embedding))
        return self._unpatched(hidden, inputs.latents.shape)

    def _controlled(self, block: int, hidden: Tensor, residuals: ControlResiduals | None) -> Tensor:
        if residuals is None or not residuals.block_count:
            return hidden
        behind = residual_behind(block, len(self._transformer.transformer_blocks), residuals.block_count)
        return hidden + residuals.block_residuals[behind]

    def _unpatched(self, hidden: Tensor, shape: torch.Size) -> Tensor:
        """Reshape (rows, patches, values of a patch) to (rows, channels, height, width)."""
        side, channels = self._transformer.config.patch_size, self._transformer.out_channels
        rows, height, width = shape[0], shape[-2] // side, shape[-1] // side
        patches = hidden.reshape(rows, height, width, side, side, channels)
        return torch.einsum("nhwpqc->nchpwq", patches).reshape(rows, channels, height * side, width * side)


def covers_transformer(transformer: Any) -> bool:
    """Return whether the passes support the network; it must have at least two blocks."""
    blocks = transformer.transformer_blocks
    return (
        type(transformer).__name__ == "SD3Transformer2DModel"
        and len(blocks) > 1
        and all(type(block).__name__ == "JointTransformerBlock" for block in blocks)
        and [block.context_pre_only for block in blocks] == [False] * (len(blocks) - 1) + [True]
    )


def _block(block: Any, hidden: Tensor, states: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    outputs = block(hidden_states=hidden, encoder_hidden_states=states, temb=embedding, joint_attention_kwargs=None)
    return cast("tuple[Tensor, Tensor]", outputs)
