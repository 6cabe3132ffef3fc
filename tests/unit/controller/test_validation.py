"""What a replica may claim about itself."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ModelCost, PoolDemand, Replica, ReplicaKind, ReplicaReport, StartShare
from pentimento.domain.kept_quality import NOTHING_KEPT, KeptQuality
from pentimento.domain.thinned_steps import ThinnableSteps
from services.controller.checks import MAX_COUNT, MAX_REQUESTS, MAX_STEPS, check_replica, check_report

REPLICA = Replica("worker-1", ReplicaKind.UNET_WORKER, "unix:/run/w1.sock", 1)
REPORT = ReplicaReport("worker-1", 1)


@pytest.mark.parametrize("address", ["unix:/run/w1.sock", "127.0.0.1:50051", "[::1]:50051", "worker-1.fleet:65535"])
def test_addresses_that_a_channel_takes_pass(address):
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
    ],
)
def test_a_registration_that_cannot_be_used_is_refused_by_name(field, value):
    with pytest.raises(InvalidArgument, match=field):
        check_replica(replace(REPLICA, **{field: value}))


NEON = Adapter("neon", AdapterKind.LORA, "sha256:" + "a" * 64, "sd", "sha256:" + "b" * 64)


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
def test_an_adapter_that_could_not_be_asked_for_is_refused_by_name(changed, message):
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
def test_a_cost_that_nothing_can_be_planned_with_is_refused_by_name(cost, message):
    with pytest.raises(InvalidArgument, match=message):
        check_replica(replace(REPLICA, costs=(ModelCost("good", ((1, 0.5),), 10, 1.0), cost)))


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -0.001, 1.001])
def test_a_share_outside_0_to_1_is_refused_by_name(share):
    with pytest.raises(InvalidArgument, match="busy_share: must be between 0 and 1"):
        check_report(replace(REPORT, busy_share=share))


def test_more_deferred_than_scored_is_refused_by_name():
    lying = replace(REPORT, demand=(PoolDemand("heavy", scored_count=2, deferred_count=3),))

    with pytest.raises(InvalidArgument, match=r"demand\[0\].deferred_count: must be at most scored_count, 2, got 3"):
        check_report(lying)


@pytest.mark.parametrize("count", [-1, MAX_COUNT + 1])
@pytest.mark.parametrize("field", ["queue_length", "running_count", "completed_count", "failed_count"])
def test_a_count_outside_its_range_is_refused_by_name(field, count):
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
def test_a_demand_that_cannot_be_true_is_refused(demand):
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
def test_steps_that_nobody_can_leave_out_are_refused(steps: ThinnableSteps, refused: str) -> None:
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
def test_comparison_that_cannot_be_true_is_refused(demand: PoolDemand, refused: str) -> None:
    with pytest.raises(InvalidArgument, match=r"demand\[0\]." + refused):
        check_report(replace(REPORT, demand=(demand,)))


def test_a_start_is_below_its_steps_where_those_are_known() -> None:
    starts = (StartShare(4, 1, step_count=5), StartShare(5, 1))

    check_report(replace(REPORT, demand=(PoolDemand("heavy", starts=starts),)))


@given(st.text(max_size=300), st.text(max_size=300), st.integers())
def test_no_text_makes_the_check_fail_otherwise_than_by_refusing(name, address, generation):
    try:
        check_replica(Replica(name, ReplicaKind.EMBEDDER, address, generation, available_models=(name,)))
    except InvalidArgument as refusal:
        assert refusal.violations
