"""Test workers that hold other weights than the ones registered under the name."""

from dataclasses import replace

from pentimento.domain.fleet import RegisteredDigest, Replica, ReplicaKind, UnplannedModel
from pentimento.policies.plan.inputs import PlanInput, ReplicaView
from pentimento.policies.registered_digests import (
    HeldDigests,
    as_unplanned,
    named_digests,
    notes_of,
    without_mismatched,
)

REGISTERED = {"heavy": "sha256:right", "other": "sha256:other"}
RIGHT = Replica(
    "w1", ReplicaKind.UNET_WORKER, "unix:w1", 1, resident_models=("heavy",), held_model_digest="sha256:right"
)
WRONG = replace(
    RIGHT,
    instance_id="w2",
    held_model_digest="sha256:wrong",
    resident_models=("heavy", "neon"),
    available_models=("heavy", "light"),
)


def context(*replicas: Replica) -> PlanInput:
    return PlanInput(0.0, tuple(map(ReplicaView, replicas)))


def test_a_worker_with_another_digest_has_that_model_no_more() -> None:
    fleet = context(RIGHT, WRONG)
    mismatched = HeldDigests().seen(fleet.replicas).mismatched(REGISTERED)

    first, second = (view.replica for view in without_mismatched(fleet, mismatched).replicas)

    assert first == RIGHT
    assert (second.resident_models, second.available_models) == ((), ("light",))
    assert as_unplanned(mismatched) == (UnplannedModel("heavy", "", "MODEL_DIGEST_MISMATCH", "w2"),)
    assert notes_of(mismatched) == (
        "w2 is not planned: it holds heavy as sha256:wrong, which is not the registered one",
    )


def test_unregistered_names_and_unknown_digests_are_no_mismatch() -> None:
    fleet = context(replace(WRONG, resident_models=("light",)), replace(WRONG, instance_id="w3", held_model_digest=""))
    seen = HeldDigests().seen(fleet.replicas)

    assert seen.mismatched(REGISTERED) == {}
    assert without_mismatched(fleet, {}) is fleet


def test_held_digest_is_remembered_while_worker_holds_another_model() -> None:
    """Otherwise it would have to load the wrong weights again and again."""
    seen = HeldDigests().seen(context(WRONG).replicas)
    elsewhere = replace(WRONG, resident_models=("light",), held_model_digest="sha256:light")
    later = seen.seen(context(elsewhere).replicas)

    (view,) = without_mismatched(context(elsewhere), later.mismatched(REGISTERED)).replicas

    assert (view.replica.resident_models, view.replica.available_models) == (("light",), ("light",))


def test_new_generation_or_registration_is_checked_again() -> None:
    seen = HeldDigests().seen(context(WRONG).replicas)

    assert seen.mismatched({"heavy": "sha256:wrong"}) == {}
    assert seen.seen(context(replace(WRONG, generation=2, held_model_digest="")).replicas).known == {}
    assert seen.seen(()).known == {}


def test_plans_name_digests_of_models_of_workers() -> None:
    assert named_digests(context(WRONG), REGISTERED) == (RegisteredDigest("heavy", "sha256:right"),)


def test_mismatched_model_removes_its_loras_and_mismatched_lora_keeps_model() -> None:
    fleet = context(replace(WRONG, available_models=("heavy", "neon", "light")))

    first, behind = (
        without_mismatched(fleet, {("w2", 1, model): "sha256:wrong"}).replicas[0].replica for model in ("heavy", "neon")
    )

    assert (first.resident_models, first.available_models) == ((), ("neon", "light"))
    assert (behind.resident_models, behind.available_models) == (("heavy",), ("heavy", "light"))
