"""Define the controller's settings: flags, PENTIMENTO_CONTROLLER_… and the table [controller]."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from pentimento.domain.components import DEFAULT_DISK_MIB
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import Handover
from pentimento.plugins import POLICIES, check_policy, load_plugin
from pentimento.policies.plan.registry import SERVING_POLICIES, PolicyBuilder, ServingPolicy
from pentimento.policies.plan.settings import DeferralCurve, MixtureMode, ModelQuality, ServingSettings
from pentimento.profiles.catalogue import PromiseSettings
from pentimento.rpc import RpcServerSettings
from pentimento.rpc.settings import check_address
from pentimento.settings import setting

# Settings that ServingSettings has unchanged.
_UNCHANGED = ("heavy", "light", "small", "modm_mode")
# Upper limits of quality, spread and reuse.
_MOST = (1.0, 1.0, 2.0)
# Flags of the fields that a policy may need.
_FLAGS = {
    "heavy": "--heavy",
    "light": "--light",
    "small_models": "--small",
    "slo_s": "--slo-s",
    "peak_per_s": "--policy-options peak_per_s",
}
# Fields of ServingSettings that `--policy-options` may set, with their limits.
_OPTIONS = {
    "expected_per_s": (0.0, math.inf),
    "peak_per_s": (0.0, math.inf),
    "fixed_threshold": (0.0, 1.0),
    "overprovision": (0.1, 10.0),
    "run_price": (0.0, 1.0),
    "demand_weight": (0.001, 1.0),
    "hysteresis": (0.0, 0.9),
    "dwell_s": (0.0, 3600.0),
    "damping_period_s": (0.0, 3600.0),
}


@dataclass(frozen=True)
class PolicySettings:
    """Hold the settings of policies; `ServingSettings` explains them. Each policy reads its own."""

    heavy: str = setting("", help="model for misses and deferred requests")
    light: str = setting("", help="first model of a cascade")
    small: tuple[str, ...] = setting((), help="models that refine hits, best first; empty: the light model")
    slo_s: float = setting(0.0, help="latency objective of a request; 0: none", minimum=0)
    deferral: tuple[str, ...] = setting(
        (),
        help="points THRESHOLD:SHARE of the deferral curve f(t), ascending: the share of light images with a "
        "confidence at or below the threshold; empty: as measured, else a straight line",
    )
    modm_mode: MixtureMode = setting(
        MixtureMode.QUALITY,
        help="large workers of modm: as the hits allow (quality), or by the misses' share of the work (throughput)",
    )
    qualities: tuple[str, ...] = setting(
        (),
        help="MODEL=QUALITY[:SPREAD[:REUSE]] for joint: mean (0-1), gain of the most over the least confident image "
        "(0-1), share that a cached start keeps (0-2); default: heavy 1, others 0.9, no spread, all kept",
    )
    policy_options: tuple[str, ...] = setting(
        (),
        help="NAME=NUMBER of a policy: expected_per_s (first demand), peak_per_s (static-cascade), fixed_threshold "
        "(static-threshold), demand_weight (of the newest second), overprovision (factor on demand), run_price (joint: "
        "quality, 0-1, that a full heavy run must gain), hysteresis, dwell_s and damping_period_s (modm: spare "
        "throughput for the better model, seconds between two changes, of a PID step; 0: undamped)",
    )

    def serving(self) -> ServingSettings:
        """Return the settings of policies. Raises ValueError naming the flag that is wrong."""
        same = {name: getattr(self, name) for name in _UNCHANGED}
        serving = ServingSettings(slo_s=self.slo_s or math.inf, deferral=self._deferral(), **same)
        qualities = self._qualities({serving.heavy, serving.light, *serving.small_models})
        return replace(serving, qualities=qualities, **self._options())

    def _options(self) -> dict[str, Any]:
        """Return the policy options by field. Raises ValueError naming the option that is wrong."""
        found: dict[str, Any] = {}
        for given in self.policy_options:
            name, _, number = given.partition("=")
            least, most = _OPTIONS.get(name, (math.nan, math.nan))
            try:
                is_within = least <= float(number) <= most
            except ValueError:
                is_within = False
            if not is_within or not math.isfinite(float(number)):
                names = ", ".join(_OPTIONS)
                raise ValueError(f"--policy-options must be NAME=NUMBER within limits, of {names}; got {given!r:.120}")
            found[name] = float(number)
        return found

    def _qualities(self, models: Set[str]) -> tuple[ModelQuality, ...]:
        """Return the stated qualities. Raises ValueError for an invalid entry, or a model outside `models`."""
        found: dict[str, ModelQuality] = {}
        for given in self.qualities:
            model, _, numbers = given.partition("=")
            quality = _quality_of(model, numbers.split(":"))
            if quality is None:
                raise ValueError(
                    f"--qualities must be MODEL=QUALITY[:SPREAD[:REUSE]] within limits, got {given!r:.120}"
                )
            if model not in models or model in found:
                raise ValueError(
                    f"--qualities must name a model of --heavy, --light and --small once, got {model!r:.80}"
                )
            found[model] = quality
        return tuple(found.values())

    def _deferral(self) -> DeferralCurve:
        if not self.deferral:
            return DeferralCurve()
        try:
            points = [tuple(map(float, point.split(":"))) for point in self.deferral]
            thresholds, shares = zip(*points, strict=True)
            return DeferralCurve(thresholds, shares)
        except ValueError as error:
            raise ValueError(f"--deferral must be THRESHOLD:SHARE, …: {error}") from None


def _quality_of(model: str, numbers: Sequence[str]) -> ModelQuality | None:
    """Return the quality; None unless `numbers` are one to three numbers within their limits."""
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        return None
    if not model or len(values) > len(_MOST) or not all(0 <= v <= m for v, m in zip(values, _MOST, strict=False)):
        return None
    return ModelQuality(model, *values)


@dataclass(frozen=True)
class ControllerSettings:
    rpc: RpcServerSettings
    serving: PolicySettings = PolicySettings()
    promise: PromiseSettings = field(default_factory=PromiseSettings)
    lease_s: float = setting(
        2.5,
        help="silence of the leader before a standby takes over, and of a replica before it leaves the plan",
        minimum=0.2,
        maximum=600,
    )
    plan_interval_s: float = setting(5.0, help="period of demand between two decisions", minimum=0.05, maximum=600)
    allocator: str = setting(
        "resident", help=f"policy that plans: {', '.join(sorted(SERVING_POLICIES))}, or a plug-in's"
    )
    cascade: str = setting(
        "",
        help="registered cascade (light>heavy or longer) to plan; --allocator plans until it is registered",
    )
    ledger_url: str = setting(
        "", help="sqlite:////file or postgresql+psycopg://user@host/database?passfile=…; controller, empty: none"
    )
    objects_url: str = setting(
        "",
        help="object store: file:///directory or s3://bucket/prefix[?endpoint=…&region=…]; controller, empty: none",
    )
    component_disk_mib: int = setting(
        DEFAULT_DISK_MIB,
        help="disk for components, each smaller than it",
        minimum=1,
    )
    standby: bool = setting(False, help="wait until no other process over this ledger is active, then take over")
    scaler_listen: tuple[str, ...] = setting(
        (), help="addresses of the external scaler for KEDA, without tokens; empty: none"
    )
    scaled_models: tuple[str, ...] = setting(
        (), help="models that an autoscaler starts on demand: requests wait for their first worker"
    )

    def __post_init__(self) -> None:
        if self.standby and not self.ledger_url:
            raise ValueError("--standby needs a --ledger-url that the leader has too")
        if self.cascade and not (self.ledger_url and math.isfinite(self.serving.serving().slo_s)):
            raise ValueError("--cascade needs a --ledger-url, where it is registered, and a --slo-s")
        self._check_scaler()
        self.policy()

    def _check_scaler(self) -> None:
        for address in self.scaler_listen:
            check_address("--scaler-listen", address)
        if set(self.scaler_listen) & {address for address in self.rpc.listen if not address.endswith(":0")}:
            raise ValueError("--scaler-listen must be other addresses than --listen")

    def policy(self, handover: Handover | None = None) -> ServingPolicy:
        """Build the policy. `handover`: the registered hand-over from the light to the heavy model; its f(t) replaces
        the settings' own. Raises ValueError naming the flag that the policy lacks."""
        serving = self.serving.serving()
        if handover is not None:
            serving = serving.handing_over(handover)
        build = builder_of(self.allocator)
        try:
            build.check(serving)
        except InvalidArgument as error:
            (lacking,) = error.violations
            raise ValueError(f"{_FLAGS[lacking.field]} {lacking.description}") from None
        return build(serving)


def builder_of(name: str) -> PolicyBuilder:
    """Return the builder of a policy, built in or of a plug-in. Raises SettingsError."""
    if (built_in := SERVING_POLICIES.get(name)) is not None:
        return built_in
    check_policy(name, "--allocator")
    plugin = load_plugin(POLICIES, name, f"--allocator {name}")
    assert isinstance(plugin, PolicyBuilder), f"{name} must be a PolicyBuilder"
    return plugin
