"""Read and write profiles: measured costs of models, and the reuse, skipped steps and late LoRAs that they allow."""

from typing import TYPE_CHECKING

from pentimento.lazy_names import imported_when_used

if TYPE_CHECKING:
    from pentimento.profiles.catalogue import read_profiles
    from pentimento.profiles.costs import ModelProfile, read_costs, run_seconds
    from pentimento.profiles.document import ProfileKind

__all__ = ["ModelProfile", "ProfileKind", "read_costs", "read_profiles", "run_seconds"]

# A worker without profiles needs none of their rules.
__getattr__ = imported_when_used(
    __name__,
    {"catalogue": "read_profiles", "costs": "ModelProfile read_costs run_seconds", "document": "ProfileKind"},
)
