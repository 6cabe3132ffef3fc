"""Serving policies: the systems of the literature and their baselines, in the code that serves live and simulates.

| module | what |
| --- | --- |
| `policy` | a policy as one value, and the registry of them by name |
| `settings` | what they are configured with; the deferral curve f(t) |
| `cascade_problem`, `cascades` | DiffServe's problem solved exactly, its allocator and ablations |
| `mixture`, `pid` | MoDM's global monitor |
| `proteus`, `uniform` | random split by load; one model everywhere |
| `needs` | what each must be told; what an emulated fleet's file tells it |
| `entry` | from a plan to the pools that a request goes through |
| `costs`, `demand`, `placement` | what allocators share: profiles, averages, which worker holds what |
"""

from pentimento.policies.serving.entry import entry_pools
from pentimento.policies.serving.needs import check_needs, fleet_settings
from pentimento.policies.serving.policy import SERVING_POLICIES, CacheUse, ServingPolicy
from pentimento.policies.serving.settings import DeferralCurve, ServingSettings

__all__ = [
    "SERVING_POLICIES",
    "CacheUse",
    "DeferralCurve",
    "ServingPolicy",
    "ServingSettings",
    "check_needs",
    "entry_pools",
    "fleet_settings",
]
