"""Which replicas have which LoRA or ControlNet: what they said of themselves, told by adapter; and which can fetch
those that were uploaded. Pure."""

from collections import defaultdict

from pentimento.domain.adapters import Adapter
from pentimento.domain.fleet import AdapterPlacement, Capability
from pentimento.policies.plan.inputs import ReplicaView


def adapter_placements(replicas: tuple[ReplicaView, ...]) -> tuple[AdapterPlacement, ...]:
    """Return a placement for each adapter that a live replica has, ordered by kind, name and digest. One name with
    other weights elsewhere is another adapter."""
    there: defaultdict[Adapter, list[ReplicaView]] = defaultdict(list)
    for view in sorted(replicas, key=lambda view: view.replica.instance_id):
        for adapter in view.replica.adapters:
            there[adapter].append(view)
    ordered = sorted(there, key=lambda adapter: (adapter.kind.value, adapter.name, adapter.digest, repr(adapter)))
    return tuple(_placement(adapter, there[adapter]) for adapter in ordered)


def uploaded_placements(
    uploaded: tuple[Adapter, ...], replicas: tuple[ReplicaView, ...]
) -> tuple[AdapterPlacement, ...]:
    """Return a placement for each LoRA of the object store: on every worker that fetches such."""
    there = sorted(replicas, key=lambda view: view.replica.instance_id)
    fetching = [view for view in there if Capability.UPLOADED_LORA in view.replica.capabilities]
    return tuple(_placement(adapter, fetching) for adapter in uploaded)


def _placement(adapter: Adapter, views: list[ReplicaView]) -> AdapterPlacement:
    resident = (view for view in views if adapter.name in view.replica.resident_models)
    return AdapterPlacement(
        adapter,
        tuple(view.replica.instance_id for view in views),
        tuple(view.replica.instance_id for view in resident),
    )
