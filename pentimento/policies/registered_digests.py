"""Exclude models from plans on workers that hold them with another digest than the model repository's.

A request for such a model would receive another model's images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pentimento.domain.fleet import RegisteredDigest, ReplicaKind, UnplannedModel
from pentimento.policies.plan.inputs import PlanInput, ReplicaView

REASON = "MODEL_DIGEST_MISMATCH"

# Worker, generation (its start) and model name.
Held = tuple[str, int, str]


@dataclass(frozen=True)
class HeldDigests:
    """Hold the digests found on workers, by worker, start and model name. They stay known after a worker has switched
    to another model, so that no plan sends it back to a mismatched one."""

    known: Mapping[Held, str] = field(default_factory=dict)

    def seen(self, replicas: tuple[ReplicaView, ...]) -> "HeldDigests":
        """Return the digests with the current ones of live workers added, and other workers removed."""
        live = {(view.replica.instance_id, view.replica.generation): view.replica for view in replicas}
        kept = {held: digest for held, digest in self.known.items() if held[:2] in live}
        now = {
            (*start, one.held_model): one.held_model_digest
            for start, one in live.items()
            if one.kind is ReplicaKind.UNET_WORKER and one.held_model and one.held_model_digest
        }
        return HeldDigests(kept | now)

    def mismatched(self, registered: Mapping[str, str]) -> dict[Held, str]:
        """Return the held digests that differ from the registered ones."""
        return {held: digest for held, digest in self.known.items() if registered.get(held[2], digest) != digest}


def without_mismatched(context: PlanInput, mismatched: Mapping[Held, str]) -> PlanInput:
    """Return the context without the mismatched models of each worker."""
    if not mismatched:
        return context

    def fitting(view: ReplicaView) -> ReplicaView:
        one = view.replica
        wrong = {model for *start, model in mismatched if start == [one.instance_id, one.generation]}
        if not wrong:
            return view
        resident = tuple(model for model in one.resident_models if model not in wrong)
        # Names after the model are its LoRAs: without the model they mean nothing.
        resident = resident if one.resident_models[:1] == resident[:1] else ()
        available = tuple(model for model in one.available_models if model not in wrong)
        return replace(view, replica=replace(one, available_models=available, resident_models=resident))

    return replace(context, replicas=tuple(fitting(view) for view in context.replicas))


def as_unplanned(mismatched: Mapping[Held, str]) -> tuple[UnplannedModel, ...]:
    """Return the mismatched models for the plan's report, ordered by worker and name."""
    return tuple(UnplannedModel(model, "", REASON, name) for name, _, model in sorted(mismatched))


def notes_of(mismatched: Mapping[Held, str]) -> tuple[str, ...]:
    """Return a sentence for each mismatched model, for the plan."""
    return tuple(
        f"{name} is not planned: it holds {model} as {digest}, which is not the registered one"
        for (name, _, model), digest in sorted(mismatched.items())
    )


def named_digests(context: PlanInput, registered: Mapping[str, str]) -> tuple[RegisteredDigest, ...]:
    """Return the registered digests of the models that workers list, ordered by name."""
    workers = context.workers()
    named = {model for one in workers for model in one.models}
    return tuple(RegisteredDigest(model, registered[model]) for model in sorted(named & registered.keys()))
