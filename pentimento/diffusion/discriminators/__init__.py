"""Decide whether a light model's image is good enough in a cascade (DiffServe, section 3.2).

| module | what it does |
| --- | --- |
| `opening` | loads a directory's discriminator, and tries it out |
| `picture_discriminator` | computes confidences of an image, with or without its prompt |
| `prompt_heads` | score image and prompt together, and the prompt only |
| `transformers_networks`, `torchvision_networks` | load the EfficientNets of both libraries after validation |
"""

from pentimento.diffusion.discriminators.opening import open_discriminator
from pentimento.diffusion.discriminators.picture_discriminator import PictureDiscriminator
from pentimento.diffusion.discriminators.prompt_heads import PromptHead

__all__ = ["PictureDiscriminator", "PromptHead", "open_discriminator"]
