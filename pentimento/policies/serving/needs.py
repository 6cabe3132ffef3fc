"""Settings that a policy needs before it can plan."""

from collections.abc import Mapping

from pentimento.domain.errors import InvalidArgument
from pentimento.policies.serving.settings import ServingSettings

_CASCADE = ("heavy", "light", "slo_s")
# Fields of ServingSettings without which a policy is none.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "resident": (),
    "vanilla": ("heavy",),
    "clipper-light": ("light", "slo_s"),
    "clipper-heavy": ("heavy", "slo_s"),
    "proteus": _CASCADE,
    "static-cascade": (*_CASCADE, "peak_per_s"),
    "static-threshold": _CASCADE,
    "aimd": _CASCADE,
    "no-queueing-model": _CASCADE,
    "diffserve": _CASCADE,
    "diffserve-relaxed": _CASCADE,
    "diffserve-milp": _CASCADE,
    "nirvana-only": ("heavy",),
    "retrieval-only": ("heavy",),
    "modm": ("heavy", "small_models"),
    "modm-only": ("heavy", "small_models"),
    "resident-mixture": ("heavy", "small_models"),
    "joint": ("heavy", "small_models", "slo_s"),
}


def check_needs(name: str, settings: ServingSettings) -> None:
    """Raise InvalidArgument that names the field which the policy of that name lacks."""
    for field in NEEDS[name]:
        value = getattr(settings, field)
        if field in ("slo_s", "peak_per_s"):
            if not 0.0 < value < float("inf"):
                raise InvalidArgument.of(field, f"must be above 0 and finite for {name}, got {value}")
        elif not value:
            raise InvalidArgument.of(field, f"must name a model for {name}")
    if "light" in NEEDS[name] and settings.light == settings.heavy:
        raise InvalidArgument.of("light", f"must be another model than heavy for {name}, got {settings.light}")
