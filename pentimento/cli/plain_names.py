"""Readable names of plans: pools by their model, cascades as light → heavy."""

from collections.abc import Mapping

_STARTS = ("noise", "latent", "image")


def plain_pool(pool: str, models: Mapping[str, str]) -> str:
    """Return the title of a pool: its model, numbered if the model has several pools. `models`: the plan's models by
    pool."""
    model = models.get(pool, pool)
    number = pool.removeprefix(f"{model}.")
    return f"{model} (pool {int(number) + 1})" if pool != model and number.isdecimal() else pool


def plain_cascade(name: str) -> str:
    """Return the title of a cascade: `light>heavy` is light → heavy, `noise:light>heavy#1` the second threshold for
    requests from noise, and `image:light~heavy` a way without a score of the light image."""
    start, colon, way = name.partition(":")
    if not colon or start not in _STARTS:
        start, way = "", name
    models, _, number = way.partition("#")
    title = models.replace(">", " → ").replace("~", " → ")
    unscored = ", unscored" if "~" in models else ""
    again = f", threshold {int(number) + 1}" if number.isdecimal() and int(number) else ""
    return f"{title} from {start}{unscored}{again}" if start else title


def plain_stage(stage: str, models: Mapping[str, str]) -> str:
    """Return the title of a cascade's stage, given as `CASCADE POOL`."""
    cascade, _, pool = stage.rpartition(" ")
    return f"{plain_cascade(cascade)}, at {plain_pool(pool, models)}" if cascade else stage
