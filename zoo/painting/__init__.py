"""Pictures from captions by the exported models, through diffusers' own pipelines."""
