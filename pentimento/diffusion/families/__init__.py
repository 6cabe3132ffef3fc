"""Adapt model families to the engine, one module each; `load_model` selects the family of a checkpoint directory."""

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
    "load_model",
]
