"""What no plan of a joint problem is better than."""

from pentimento.policies.serving.joint_problem import JointProblem, PaintingRoute


def test_no_plan_is_better_than_all_served_each_by_the_best_way_for_its_start() -> None:
    """Of a start that nothing paints nobody can be served."""
    routes = (
        PaintingRoute("a", "noise", (), 0.5),
        PaintingRoute("b", "noise", (), 0.9),
        PaintingRoute("c", "noise", (), 0.7),
        PaintingRoute("d", "image", (), 0.25),
    )
    problem = JointProblem({"noise": 2.0, "image": 4.0, "latent": 8.0}, {}, (), routes, 1.0, served_weight=3.0)

    assert problem.bound == 2.0 * 3.9 + 4.0 * 3.25
