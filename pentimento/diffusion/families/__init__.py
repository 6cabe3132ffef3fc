"""Model families, one adapter module each; `load_model` finds the one that serves a checkpoint directory."""

from pentimento.diffusion.families.model import (
    NO_CONTROL,
    AsAlone,
    BatchKey,
    Conditioning,
    ControlResiduals,
    DenoiserEncoding,
    DenoiserInput,
    DiffusionModel,
    LoadedModelInfo,
    LowRankUpdate,
    PerSampleAdapters,
    PromptStates,
    batch_key,
    is_guided,
)
from pentimento.diffusion.families.registry import load_model

__all__ = [
    "NO_CONTROL",
    "AsAlone",
    "BatchKey",
    "Conditioning",
    "ControlResiduals",
    "DenoiserEncoding",
    "DenoiserInput",
    "DiffusionModel",
    "LoadedModelInfo",
    "LowRankUpdate",
    "PerSampleAdapters",
    "PromptStates",
    "batch_key",
    "is_guided",
    "load_model",
]
