"""Generate images from captions by the exported models, through diffusers' pipelines."""
