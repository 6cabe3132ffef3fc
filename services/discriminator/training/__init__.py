"""Train a cascade's discriminator on the light and heavy images that frontdoors compared and kept.

| module | does |
| --- | --- |
| `settings`, `command` | flags; a run from pairs to a directory |
| `pairs` | reads the kept pairs, and divides them by prompts |
| `fitting` | trains network and head, calibrates, measures against baselines |
"""
