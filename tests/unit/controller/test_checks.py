"""Limits of reports, models and cascades, by field."""

import math
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.diffusion.checkpoint import digest_files
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.components import StoredBytes, Tier, TierSpeed
from pentimento.domain.demand import AdapterDemand, PoolDemand, StartShare
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport
from pentimento.domain.kept_quality import NOTHING_KEPT, KeptQuality
from pentimento.domain.models import DeviceCost, ModelFile, ModelVariant, ReuseProfile, digest_of
from pentimento.domain.thinned_steps import ThinnableSteps
from pentimento.domain.weights import ComponentWeights, ModelChange, ShortModel, SwitchWay
from services.controller.checks import (
    MAX_COUNT,
    MAX_REQUESTS,
    MAX_STEPS,
    check_cascade,
    check_replica,
    check_report,
)
from services.controller.model_checks import check_fits_disk, check_variant
from tests.unit.controller.registered import FILES, cascade, variant

REPLICA = Replica("worker-1", ReplicaKind.UNET_WORKER, "unix:/run/w1.sock", 1)
REPORT = ReplicaReport("worker-1", 1)


@pytest.mark.parametrize("address", ["unix:/run/w1.sock", "127.0.0.1:50051", "[::1]:50051", "worker-1.fleet:65535"])
def test_channel_addresses_are_accepted(address):
    check_replica(replace(REPLICA, address=address))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instance_id", ""),
        ("instance_id", "a b"),
        ("instance_id", "w\0"),
        ("instance_id", "x" * 129),
        ("generation", 0),
        ("generation", 2**63),
        ("address", ""),
        ("address", "unix:"),
        ("address", "nowhere"),
        ("address", "host:0"),
        ("address", "host:65536"),
        ("address", "ho st:1"),
        ("address", "x" * 300 + ":1"),
        ("available_models", ("",)),
        ("available_models", ("m",) * 1025),
        ("resident_models", ("x" * 257,)),
        ("resident_models", ("a\nb",)),
        ("device", "x" * 257),
        ("build_version", "a\0"),
        ("device_memory_bytes", -1),
        ("weights", (ComponentWeights("unet", "int8", -1),)),
        ("short_models", (ShortModel("flux", 1, 2**63),)),
        ("change.weight_bytes", ModelChange("flux", SwitchWay.STAGED, 2**63, 0, 0)),
        ("change.model", ModelChange("", SwitchWay.STAGED, 1, 1, 1)),
    ],
)
def test_invalid_registration_is_refused_by_field(field, value):
    with pytest.raises(InvalidArgument, match=field):
        check_replica(replace(REPLICA, **{field.partition(".")[0]: value}))


NEON = Adapter("neon", AdapterKind.LORA, "sha256:" + "a" * 64, "sd", "sha256:" + "b" * 64)


def test_models_may_have_the_names_of_any_directories():
    named = {"stored": (StoredBytes("FLUX.2-klein-4B", Tier.DISK, 1),), "short_models": (ShortModel("Z-Image", 2, 1),)}
    check_replica(replace(REPLICA, **named, change=ModelChange("Z-Image-Turbo", SwitchWay.STAGED, 1, 0, 0)))


def test_adapters_may_be_of_one_model_or_of_a_family():
    check_replica(replace(REPLICA, adapters=(NEON, replace(NEON, name="mosaic", base_digest=""))))
    check_replica(replace(REPLICA, adapters=(NEON, replace(NEON, kind=AdapterKind.CONTROLNET))))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "../neon"}, r"replica\.adapters\[1\]\.name"),
        ({"name": "neon"}, r"replica\.adapters: must name each adapter once"),
        ({"digest": ""}, r"adapters\[1\]\.digest"),
        ({"digest": "sha256:A"}, r"adapters\[1\]\.digest"),
        ({"base_digest": "heavy"}, r"adapters\[1\]\.base_digest"),
        ({"family": "x" * 257}, r"adapters\[1\]\.family"),
        ({"licence": "a\0"}, r"adapters\[1\]\.licence"),
        ({"latest_start_fraction": math.nan}, r"adapters\[1\]\.latest_start_fraction"),
    ],
)
def test_unusable_adapter_is_refused_by_field(changed, message):
    with pytest.raises(InvalidArgument, match=message):
        check_replica(replace(REPLICA, adapters=(NEON, replace(NEON, **{"name": "other"} | changed))))


def test_adapters_are_bounded():
    many = tuple(replace(NEON, name=f"lora-{number}") for number in range(1025))
    with pytest.raises(InvalidArgument, match="must be at most 1024, got 1025"):
        check_replica(replace(REPLICA, adapters=many))


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (ModelCost("x" * 257, ((1, 1.0),)), r"costs\[1\]\.model"),
        (ModelCost("m", ((0, 1.0),)), r"costs\[1\]\.batches\.batch_size: must be between 1 and 1024, got 0"),
        (ModelCost("m", ((1, 0.0),)), r"costs\[1\]\.batches\.run_s: must be between 1e-06 and 1e\+06, got 0.0"),
        (ModelCost("m", ((1, math.nan),)), r"run_s: must be between 1e-06 and 1e\+06, got nan"),
        (ModelCost("m", (), load_s=math.inf), r"load_s: must be between 0 and 1e\+06, got inf"),
        (ModelCost("m", (), memory_bytes=-1), r"memory_bytes"),
    ],
)
def test_unusable_cost_is_refused_by_field(cost, message):
    with pytest.raises(InvalidArgument, match=message):
        check_replica(replace(REPLICA, costs=(ModelCost("good", ((1, 0.5),), 10, 1.0), cost)))


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -0.001, 1.001])
def test_share_outside_0_to_1_is_refused_by_name(share):
    with pytest.raises(InvalidArgument, match="busy_share: must be between 0 and 1"):
        check_report(replace(REPORT, busy_share=share))


def test_more_deferred_than_scored_is_refused_by_name():
    lying = replace(REPORT, demand=(PoolDemand("heavy", scored_count=2, deferred_count=3),))

    with pytest.raises(InvalidArgument, match=r"demand\[0\].deferred_count: must be at most scored_count, 2, got 3"):
        check_report(lying)


@pytest.mark.parametrize("count", [-1, MAX_COUNT + 1])
@pytest.mark.parametrize("field", ["queue_length", "running_count", "completed_count", "failed_count"])
def test_count_outside_its_range_is_refused_by_name(field, count):
    with pytest.raises(InvalidArgument, match=f"{field}: must be between 0"):
        check_report(replace(REPORT, **{field: count}))


@pytest.mark.parametrize(
    "demand",
    [
        (PoolDemand("m", arrived_count=-1),),
        (PoolDemand("m", arrived_count=MAX_REQUESTS + 1),),
        (PoolDemand("m", starts=(StartShare(5, -1),)),),
        (PoolDemand("m", starts=(StartShare(MAX_STEPS + 1, 1),)),),
        (PoolDemand("m", starts=(StartShare(5, 1),) * 1025),),
        (PoolDemand("m", starts=(StartShare(5, 1, step_count=5),)),),
        (PoolDemand("m", confidences=(1, 2)),),
        (PoolDemand("m", confidences=(-1,) * 20),),
        (PoolDemand("x" * 257),),
        (PoolDemand("m"),) * 1025,
    ],
)
def test_impossible_demand_is_refused(demand):
    with pytest.raises(InvalidArgument, match="demand"):
        check_report(replace(REPORT, demand=demand))


@pytest.mark.parametrize(
    ("steps", "refused"),
    [
        (ThinnableSteps(-1), "request_count: must be between 0"),
        (ThinnableSteps(MAX_REQUESTS + 1), "request_count: must be between 0"),
        (ThinnableSteps(1, 2.0), "spare_shares: must be between 0 and request_count, 1, got 2.0"),
        (ThinnableSteps(1, math.nan), "spare_shares: must be between 0 and request_count, 1, got nan"),
        (ThinnableSteps(1, 0.5, -0.5), "lost_shares: must be between 0 and request_count, 1, got -0.5"),
    ],
)
def test_impossible_thinnable_steps_are_refused(steps: ThinnableSteps, refused: str) -> None:
    with pytest.raises(InvalidArgument, match=r"demand\[0\].thinnable." + refused):
        check_report(replace(REPORT, demand=(PoolDemand("heavy", thinnable=steps),)))


def test_all_steps_of_all_requests_may_be_left_out() -> None:
    check_report(replace(REPORT, demand=(PoolDemand("heavy", thinnable=ThinnableSteps(2, 2.0, 2.0)),)))


@pytest.mark.parametrize(
    ("demand", "refused"),
    [
        (PoolDemand("m", compared=(NOTHING_KEPT,)), r"compared: must be 20 sums or none, got 1"),
        (PoolDemand("m", compared=(NOTHING_KEPT,) * 19 + (KeptQuality(1, 2.5, 1.0),)), r"compared\[19\].kept: must be"),
        (PoolDemand("m", hits=KeptQuality(1, math.nan, 0.0)), r"hits.kept: must be between 0 and 2 an image"),
        (PoolDemand("m", hits=KeptQuality(1, 1.0, -1.0)), r"hits.squares: must be"),
        (PoolDemand("m", hits=KeptQuality(-1)), r"hits.count"),
    ],
)
def test_impossible_comparison_is_refused(demand: PoolDemand, refused: str) -> None:
    with pytest.raises(InvalidArgument, match=r"demand\[0\]." + refused):
        check_report(replace(REPORT, demand=(demand,)))


def test_start_is_below_its_steps_where_those_are_known() -> None:
    starts = (StartShare(4, 1, step_count=5), StartShare(5, 1))

    check_report(replace(REPORT, demand=(PoolDemand("heavy", starts=starts),)))


@given(st.text(max_size=300), st.text(max_size=300), st.integers())
def test_check_of_any_text_passes_or_refuses(name, address, generation):
    try:
        check_replica(Replica(name, ReplicaKind.EMBEDDER, address, generation, available_models=(name,)))
    except InvalidArgument as refusal:
        assert refusal.violations


GOOD = variant("light", ("gpu", 0.5))
WEIGHTS = FILES[1]


def test_model_and_cascades_of_two_and_three_pass() -> None:
    check_variant(GOOD)
    check_cascade(cascade("light", "heavy"))
    check_cascade(cascade("light", "middle", "heavy"))


def test_digest_of_files_equals_workers_digest(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "w.safetensors").write_bytes(b"weights")
    (tmp_path / "model_index.json").write_text("{}")
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = tuple(
        ModelFile(str(path.relative_to(tmp_path)), sha256(path.read_bytes()).hexdigest(), 1) for path in paths
    )

    assert digest_of(files) == digest_files(tmp_path, paths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../light"}, "model.name: must be a registry name"),
        ({"name": "Light"}, "model.name: must be a registry name"),
        ({"name": ""}, "model.name: must be a registry name"),
        ({"digest": "sha256:1"}, "model.digest: must be sha256:<64 hex digits>"),
        ({"digest": "sha256:" + "0" * 64}, "model.digest: must be that of the files"),
        ({"family": ""}, "model.family: must be 1 to 256 printable characters, got none"),
        ({"licence": "x" * 257}, "model.licence: must be at most 256 printable"),
        ({"licence": "\x00"}, "model.licence: must be at most 256 printable"),
        ({"files": ()}, "model.files: must be 1 to 4096, got 0"),
        ({"files": FILES[:1] * 4097}, "model.files: must be 1 to 4096, got 4097"),
        ({"files": FILES * 2}, "model.files: must name each path once"),
        ({"files": FILES[:1]}, "model.files: must have weights: a .safetensors file at least"),
        ({"costs": (DeviceCost("", ModelCost("other", ((1, 1.0),))),)}, r"costs\[0\].cost.model: must be light"),
        ({"costs": (DeviceCost("", ModelCost("light", ())),)}, r"costs\[0\].cost.batches: must have at least one"),
        ({"costs": (DeviceCost("", ModelCost("light", ((1, math.nan),))),)}, r"run_s: must be between"),
        ({"costs": GOOD.costs * 65}, "model.costs: must be at most 64 devices, got 65"),
    ],
)
def test_unservable_model_is_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_variant(replace(GOOD, **change))


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd.json", "../w.safetensors", "a/../w.safetensors", "a//w.safetensors", "./w.safetensors"),
        *("a\\w.json", "w\x00.safetensors", "", ".", "a/" * 300 + "w.json", "w.json\n"),
    ],
)
def test_file_outside_the_folder_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"model.files\[0\].path: must"):
        check_variant(replace(GOOD, files=(replace(WEIGHTS, path=path),)))


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".ckpt", ".pkl", ".safetensors.bin", ".py", ""])
def test_weights_are_safetensors_alone(suffix: str) -> None:
    with pytest.raises(InvalidArgument, match=r"files\[1\].path: must end in .*: weights are safetensors"):
        check_variant(replace(GOOD, files=(WEIGHTS, replace(WEIGHTS, path=f"unet/w{suffix}"))))


@pytest.mark.parametrize(
    ("change", "message"), [({"sha256": "B" * 64}, "sha256: must be 64 hex"), ({"size_bytes": -1}, "size_bytes")]
)
def test_file_needs_sum_and_size(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_variant(replace(GOOD, files=(replace(WEIGHTS, **change),)))


TWO = cascade("light", "heavy")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (("light",), "cascade.models: must be 2 to 8 models, got 1"),
        (tuple(f"m{number}" for number in range(9)), "cascade.models: must be 2 to 8 models, got 9"),
        (("light", "light"), "cascade.models: must name each model once"),
        (("light", "a>b"), r"cascade.models\[1\]: must be a registry name"),
        (("light", "middle", "heavy"), "cascade.handovers: must be 2, one for each model but the last, got 1"),
    ],
)
def test_cascade_has_models_and_one_handover_less(models: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_cascade(replace(TWO, models=models))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discriminator": "light"}, "discriminator: must be the models of the discriminator's cascade"),
        ({"discriminator": "light>../heavy"}, "discriminator: must be the models"),
        ({"discriminator_digest": ""}, "discriminator_digest: must be sha256:"),
        ({"shares": (0.0, 1.0)}, "shares: must be 2 to 1024 points, a share for each threshold, got 3 and 2"),
        ({"thresholds": (), "shares": ()}, "shares: must be 2 to 1024 points"),
        ({"shares": (0.0, 0.9, 0.8)}, "shares: must ascend within 0 and 1"),
        ({"thresholds": (0.0, math.nan, 1.0)}, "thresholds: must ascend within 0 and 1"),
        ({"shares": (0.0, 0.5, 1.1)}, "shares: must ascend within 0 and 1"),
        ({"reuse_share": 1.0}, "reuse_share: must be at least 0 and below 1, got 1.0"),
        ({"reuse_profile": ReuseProfile("sha256:1", 0.95, "mean")}, "reuse_profile: must be absent"),
    ],
)
def test_unusable_handover_is_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"cascade.handovers\[0\].{message}"):
        check_cascade(replace(TWO, handovers=(replace(TWO.handovers[0], **change),)))


@given(name=st.text(max_size=200), path=st.text(max_size=60))
def test_variant_check_of_any_text_passes_or_refuses(name: str, path: str) -> None:
    try:
        check_variant(replace(GOOD, name=name, files=(replace(WEIGHTS, path=path),)))
    except InvalidArgument as refused:
        assert refused.violations[0].field.startswith("model.")


def stored_variant(**changed: object) -> ModelVariant:
    files = (FILES[0], replace(FILES[1], blocks=("c" * 64,)))
    model = replace(variant("mine"), files=files, source="s3://bucket/mine", default_steps=20)
    return replace(model, **changed)  # type: ignore[arg-type]


def test_variant_with_a_source_passes() -> None:
    check_variant(stored_variant())
    check_variant(stored_variant(source="objects:"))


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("model.source", {"source": "https://example.org/mine"}),
        ("model.source", {"source": "s3://b/\n"}),
        ("model.source", {"source": "s3://" + "b" * 600}),
        ("model.default_steps", {"default_steps": 0}),
        ("model.default_guidance_scale", {"default_guidance_scale": -1.0}),
        ("model.default_guidance_scale", {"default_guidance_scale": math.nan}),
        (r"model.files\[1\].blocks", {"files": FILES}),
        (r"model.files\[1\].blocks", {"files": (FILES[0], replace(FILES[1], blocks=("c" * 64,) * 2))}),
        (r"model.files\[1\].blocks", {"files": (FILES[0], replace(FILES[1], blocks=("C" * 64,)))}),
    ],
)
def test_source_that_workers_cannot_read_is_rejected_by_field(field: str, changed: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=field):
        check_variant(stored_variant(**changed))


def test_files_beyond_the_local_disk_are_rejected_by_tier_and_equal_files_count_once() -> None:
    twice = (*FILES, replace(FILES[1], path="vae/diffusion_pytorch_model.safetensors"))
    check_fits_disk(twice, 1010)

    with pytest.raises(FailedPrecondition, match="local disk tier of 1009 bytes") as raised:
        check_fits_disk(twice, 1009)

    assert raised.value.reason == "COMPONENT_TOO_LARGE"


def _with_others(*names: str) -> PoolDemand:
    return PoolDemand("m", adapters=(AdapterDemand(AdapterKind.LORA, "ink", 1, names),))


@pytest.mark.parametrize(
    ("replica", "report", "refusal"),
    [
        ({"stored": (StoredBytes("", Tier.DISK, 1),)}, {}, "replica.stored[0].component"),
        ({"stored": (StoredBytes("m", Tier.DISK, 2**63),)}, {}, "replica.stored[0].size_bytes"),
        ({"stored": (StoredBytes("m", Tier.DISK, 1),) * 2049}, {}, "replica.stored: must be at most 2048, got 2049"),
        ({"adapter_memory_bytes": -1}, {}, "replica.adapter_memory_bytes"),
        ({}, {"load_speeds": (TierSpeed(Tier.DISK, -1.0),)}, "load_speeds[0].seconds_per_gb"),
        ({}, {"lora_speeds": (TierSpeed(Tier.DISK, math.nan),)}, "lora_speeds[0].seconds_per_gb"),
        ({}, {"lora_speeds": (TierSpeed(Tier.DISK, 1.0),) * 5}, "lora_speeds: must be at most 4 tiers, got 5"),
        ({}, {"demand": (_with_others("a", ""),)}, "demand[0].adapters.others[1]"),
        ({}, {"demand": (_with_others(*["a"] * 65),)}, "demand[0].adapters.others: must be at most 64, got 65"),
    ],
)
def test_wrong_components_are_rejected_by_field(replica: dict[str, Any], report: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(refusal)}"):
        check_replica(replace(REPLICA, **replica))
        check_report(replace(REPORT, **report))
