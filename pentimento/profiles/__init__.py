"""Read and write profiles: measured costs of models, and the reuse, skipped steps and late LoRAs that they allow."""

from typing import TYPE_CHECKING

from pentimento.lazy_names import imported_when_used

if TYPE_CHECKING:
    from pentimento.profiles.catalogue import read_profiles

__all__ = ["read_profiles"]

# A worker without profiles needs none of their rules.
__getattr__ = imported_when_used(__name__, {"catalogue": "read_profiles"})
