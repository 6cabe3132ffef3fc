"""Read the costs of LoRAs and ControlNets on an emulated or simulated device from a file.

[adapters]
loras = ["papercut", "pixel"]               # fleets only: names that requests may use
resident_count = 2                          # LoRAs that a device keeps, the last used ones
load_s = 0.3                                # loading another one
latest_start_fraction = 0.2                 # of the steps that may run before a LoRA is loaded
patch_s = 0.12                              # patching LoRAs into the weights, or removing them
residual_wait_s = 0.002                     # added to a step with ControlNet residuals
"""

from dataclasses import dataclass

from lab.files.toml_document import TomlTable
from pentimento.domain.adapters import ADAPTER_NAME_RULE, is_adapter_name
from pentimento.profiles.costs import NOTHING, Cost, steady


@dataclass(frozen=True)
class AdapterCosts:
    """Seconds, as the module says. `resident_count` 0: there are no adapters. ControlNets compute elsewhere: their part
    is what a step waits for them beyond its own first half."""

    resident_count: int = 0
    load: Cost = NOTHING
    patch: Cost = NOTHING
    residual_wait: Cost = NOTHING
    latest_start_fraction: float = 0.0
    loras: tuple[str, ...] = ()


NO_ADAPTER_COSTS = AdapterCosts()


def adapter_costs(table: TomlTable | None, *, named: bool = False) -> AdapterCosts:
    """Return what a file's table says; no adapters without one. With `named` it names the LoRAs. Raises InvalidArgument
    that names file, line, field and limit."""
    if table is None:
        return NO_ADAPTER_COSTS
    loras = table.texts("loras", ()) if named else ()
    for name in loras:
        if not is_adapter_name(name):
            raise table.error("loras", f"{ADAPTER_NAME_RULE}, got {name[:80]!r}")
    if len(set(loras)) < len(loras):
        raise table.error("loras", f"must have names of their own, got {', '.join(loras)[:200]}")
    variation = table.number("variation", 0.0)
    return AdapterCosts(
        resident_count=table.whole("resident_count", 1, minimum=1),
        load=steady(table.number("load_s", 0.0), variation),
        patch=steady(table.number("patch_s", 0.0), variation),
        residual_wait=steady(table.number("residual_wait_s", 0.0), variation),
        latest_start_fraction=table.number("latest_start_fraction", 0.0, maximum=1.0),
        loras=loras,
    )
