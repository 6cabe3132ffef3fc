"""Decide whether a light model's image is good enough in a cascade (DiffServe, section 3.2).

| module | what it does |
| --- | --- |
| `opening` | loads a directory's discriminator, tries it out, and computes confidences of images |
| `prompt_heads` | score image and prompt together, and the prompt only |
| `transformers_networks`, `torchvision_networks` | load the EfficientNets of both libraries after validation |
"""

from pentimento.diffusion.discriminators.opening import PictureDiscriminator, open_discriminator
from pentimento.diffusion.discriminators.prompt_heads import PromptHead

__all__ = ["PictureDiscriminator", "PromptHead", "open_discriminator"]
