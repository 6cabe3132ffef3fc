"""Model families, one adapter module each; `load_model` finds the one that serves a checkpoint directory."""

from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput, DiffusionModel, ModelInfo
from pentimento.diffusion.families.registry import load_model

__all__ = ["ControlResiduals", "DenoiserInput", "DiffusionModel", "ModelInfo", "load_model"]
