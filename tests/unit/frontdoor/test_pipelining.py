"""Test which requests use residuals that are one step old, and how that is explained."""

from dataclasses import replace

import pytest

from pentimento.domain.generation import ControlNetSelection, FromNoise, GenerationSpec, Route, Scheduler
from pentimento.policies.residual_pipelining import PipeliningMode
from pentimento.profiles.catalogue import ProfileSet
from services.frontdoor.routing.step_rules import ControlPipelining
from tests.support.profiles import EDGES, PIPELINING_PROFILE, changed

LAYOUT = replace(EDGES, digest="sha256:layout", name="layout")
PROFILES = ProfileSet(
    (PIPELINING_PROFILE, changed(PIPELINING_PROFILE, adapters=(LAYOUT,), rows=PIPELINING_PROFILE.rows[:1]))
)
NETS = {name: ControlNetSelection(name, b"", digest=f"sha256:{name}") for name in ("edges", "layout", "pose")}
SPEC = GenerationSpec("a circle", "", "heavy", 64, 64, 50, 1.5, Scheduler.DDIM, seed=1)


def controlled(*names: str, steps: int = 50) -> GenerationSpec:
    return replace(SPEC, num_inference_steps=steps, controlnets=tuple(NETS[name] for name in names))


@pytest.mark.parametrize(
    ("spec", "model", "mode", "waited", "from_step", "why"),
    [
        (controlled("edges"), "heavy", "auto", 0.3, 4, "one step old from step 4, images waited for 30% of a step"),
        (controlled("edges", "layout"), "heavy", "on", None, 4, "one step old from step 4, by the settings"),
        (controlled("edges"), "heavy", "auto", None, 0, "SHORT_WAITS: no image has waited yet, 10% is too long"),
        (controlled("edges"), "heavy", "auto", 0.05, 0, "SHORT_WAITS: images waited for 5% of a step, 10% is too"),
        (controlled("edges"), "heavy", "off", 0.3, 0, "OFF: pipelining is off"),
        (controlled("edges"), "light", "on", 0.3, 0, "PROFILE_MISSING: no pipelining profile of heavy with edges"),
        (controlled("edges", "pose"), "heavy", "on", 0.3, 0, "PROFILE_MISSING: no pipelining profile of heavy with po"),
        (controlled("edges", steps=20), "heavy", "on", 0.3, 0, "NOTHING_ALLOWED: the profile of edges allows none at"),
        (SPEC, "heavy", "on", 0.3, 0, ""),
    ],
)
def test_pipelining_mode_has_step_and_reason(
    spec: GenerationSpec, model: str, mode: str, waited: float | None, from_step: int, why: str
) -> None:
    pipelining = ControlPipelining(PipeliningMode(mode), PROFILES)
    pipelining.learn(spec, waited)

    found = pipelining.from_step(spec, f"sha256:{model}")
    route = Route("", FromNoise(), model, f"sha256:{model}", pipelined_from_step=found)

    assert found == from_step
    assert why in pipelining.why(spec, route)
    assert bool(pipelining.why(spec, route)) is bool(spec.controlnets)
