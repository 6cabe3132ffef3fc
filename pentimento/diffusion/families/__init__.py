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
    PromptStates,
)
from pentimento.diffusion.families.registry import StagedModel, load_model, stage_model, usual_dtype
from pentimento.diffusion.families.row_updates import LowRankUpdate, PerSampleAdapters

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
    "StagedModel",
    "load_model",
    "stage_model",
    "usual_dtype",
]
