import random

from benchmarks.milp import TOLERANCE, is_optimal_plain, joint_shortfall, random_cascade, random_fleet


def test_cascade_plans_equal_brute_force() -> None:
    rng = random.Random(1)

    assert all(is_optimal_plain(random_cascade(rng)) for _ in range(60))


def test_joint_plans_reach_brute_force_objective() -> None:
    rng = random.Random(2)

    assert max(joint_shortfall(random_fleet(rng)) for _ in range(12)) <= TOLERANCE
