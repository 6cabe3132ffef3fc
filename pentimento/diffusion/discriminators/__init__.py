"""Discriminators of cascades: whether a light model's picture will do (DiffServe, section 3.2).

| module | what it does |
| --- | --- |
| `opening` | a directory as a loaded, tried out discriminator |
| `picture_discriminator` | its confidences, of a picture alone or with its prompt |
| `prompt_heads` | what reads picture and prompt together, and the prompt alone |
| `transformers_networks`, `torchvision_networks` | the EfficientNets of both libraries, judged before loading |
"""

from pentimento.diffusion.discriminators.opening import open_discriminator
from pentimento.diffusion.discriminators.picture_discriminator import PictureDiscriminator
from pentimento.diffusion.discriminators.prompt_heads import PromptHead

__all__ = ["PictureDiscriminator", "PromptHead", "open_discriminator"]
