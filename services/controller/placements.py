"""Which replicas have which LoRA or ControlNet: what they said of themselves, told by adapter. Pure."""

from collections import defaultdict

from pentimento.domain.adapters import Adapter
from pentimento.domain.fleet import AdapterPlacement
from pentimento.policies.allocation import ReplicaView


def adapter_placements(replicas: tuple[ReplicaView, ...]) -> tuple[AdapterPlacement, ...]:
    """Return a placement for each adapter that a live replica has, ordered by kind, name and digest. One name with
    other weights elsewhere is another adapter."""
    there: defaultdict[Adapter, list[ReplicaView]] = defaultdict(list)
    for view in sorted(replicas, key=lambda view: view.replica.instance_id):
        for adapter in view.replica.adapters:
            there[adapter].append(view)
    ordered = sorted(there, key=lambda adapter: (adapter.kind.value, adapter.name, adapter.digest, repr(adapter)))
    return tuple(_placement(adapter, there[adapter]) for adapter in ordered)


def _placement(adapter: Adapter, views: list[ReplicaView]) -> AdapterPlacement:
    resident = (view for view in views if adapter.name in view.replica.resident_models)
    return AdapterPlacement(
        adapter,
        tuple(view.replica.instance_id for view in views),
        tuple(view.replica.instance_id for view in resident),
    )
