"""Settings of the controller: flags, PENTIMENTO_CONTROLLER_… and the table [controller]."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pentimento.devices.emulation import read_fleet
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import Handover
from pentimento.policies.profiled_cascades import ReusePromise
from pentimento.policies.selector_profiling import RuleChoice
from pentimento.policies.serving.needs import check_needs, fleet_settings
from pentimento.policies.serving.policy import SERVING_POLICIES, ServingPolicy
from pentimento.policies.serving.settings import DeferralCurve, ModelQuality, ServingSettings
from pentimento.rpc import RpcServerSettings
from pentimento.settings import setting

_DEFAULT = ServingSettings("")
# Of quality, spread and reuse.
_MOST = (1.0, 1.0, 2.0)
# Of what a policy may lack.
_FLAGS = {
    "heavy": "--heavy",
    "light": "--light",
    "small_models": "--small",
    "slo_s": "--slo-s",
    "peak_per_s": "--peak-per-s",
}


@dataclass(frozen=True)
class PolicySettings:
    """What the policy plans with, as `ServingSettings` explains it. Each policy reads what it needs."""

    fleet: Path | None = setting(
        None, help="file of the emulated fleet; says what the settings here do not", must_exist=True
    )
    heavy: str = setting("", help="model of misses, and of what a cascade sends on; empty: by --fleet")
    light: str = setting("", help="first model of a cascade; empty: by --fleet")
    small: tuple[str, ...] = setting((), help="models that refine hits, best first; empty: the light one")
    slo_s: float = setting(0.0, help="SLO of a request; 0: none", minimum=0)
    deferral_thresholds: tuple[float, ...] = setting(
        (), help="thresholds of the deferral curve f(t), ascending; empty: by --fleet", minimum=0, maximum=1
    )
    deferral_shares: tuple[float, ...] = setting(
        (), help="shares of light pictures whose confidence is not above them", minimum=0, maximum=1
    )
    discriminator_s: float = setting(
        0.0, help="seconds of the discriminator; 0: by --fleet, else as discriminators measured", minimum=0
    )
    expected_per_s: float = setting(
        _DEFAULT.expected_per_s, help="requests a second that dynamic policies begin with; 0: what they see", minimum=0
    )
    peak_per_s: float = setting(
        _DEFAULT.peak_per_s, help="requests a second that static policies are provisioned for", minimum=0
    )
    fixed_threshold: float = setting(_DEFAULT.fixed_threshold, help="of static-threshold", minimum=0, maximum=1)
    overprovision: float = setting(
        _DEFAULT.overprovision, help="demand is planned for so many times", minimum=0.1, maximum=10
    )
    demand_weight: float = setting(
        _DEFAULT.demand_weight, help="weight of demand's newest second in its average", minimum=0.001, maximum=1
    )
    batch_sizes: tuple[int, ...] = setting(
        _DEFAULT.batch_sizes, help="batch sizes to choose from", minimum=1, maximum=1024
    )
    hysteresis: float = setting(
        _DEFAULT.hysteresis,
        help="share of its throughput that a smaller model must spare before the better one comes back",
        minimum=0,
        maximum=0.9,
    )
    run_price: float = setting(
        _DEFAULT.run_price,
        help="quality of a request (0..1) that a whole run of the heavy model must be worth to the joint policy",
        minimum=0,
        maximum=1,
    )

    qualities: tuple[str, ...] = setting(
        (),
        help="what the joint policy weighs pictures by, measured with one measure for all models:"
        " MODEL=QUALITY[:SPREAD[:REUSE]], the mean (0..1), by how much the most confident pictures are better than the"
        " least confident (0..1), and what a start from the cache keeps of it (0..2); of models not named --fleet's,"
        " else 1 for heavy and 0.9 for others, without spread, all kept",
    )

    def serving(self) -> ServingSettings:
        """ValueError for a curve that is none; what is wrong with the fleet's file as `read_fleet` says it."""
        of_fleet = self._of_fleet
        serving = replace(
            of_fleet,
            heavy=self.heavy or of_fleet.heavy,
            light=self.light or of_fleet.light,
            small=self.small,
            slo_s=self.slo_s or math.inf,
            deferral=self._deferral() or of_fleet.deferral,
            discriminator_s=self.discriminator_s or of_fleet.discriminator_s,
            expected_per_s=self.expected_per_s,
            peak_per_s=self.peak_per_s,
            fixed_threshold=self.fixed_threshold,
            overprovision=self.overprovision,
            demand_weight=self.demand_weight,
            batch_sizes=self.batch_sizes,
            hysteresis=self.hysteresis,
            run_price=self.run_price,
        )
        own = self._qualities({serving.heavy, serving.light, *serving.small_models})
        others = tuple(one for one in of_fleet.qualities if one.model not in own)
        return replace(serving, qualities=(*own.values(), *others))

    @cached_property
    def _of_fleet(self) -> ServingSettings:
        """Read once: what plans go by is what the file said at the start, however it is edited since."""
        return fleet_settings(read_fleet(self.fleet)) if self.fleet is not None else _DEFAULT

    def _qualities(self, models: Set[str]) -> dict[str, ModelQuality]:
        """By model. ValueError naming what is wrong with an entry, a model that is none of `models` among it."""
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
        return found

    def _deferral(self) -> DeferralCurve | None:
        if not self.deferral_thresholds and not self.deferral_shares:
            return None
        try:
            return DeferralCurve(self.deferral_thresholds, self.deferral_shares)
        except ValueError as error:
            raise ValueError(f"--deferral-thresholds and --deferral-shares: {error}") from None


def _quality_of(model: str, numbers: Sequence[str]) -> ModelQuality | None:
    """None where they are not one to three numbers within their limits."""
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
    lease_s: float = setting(
        2.5,
        help="silence after which a replica falls out of the plan; it reports three times as often",
        minimum=0.2,
        maximum=600,
    )
    plan_interval_s: float = setting(
        5.0, help="time over which demand is taken before the policy decides anew", minimum=0.05, maximum=600
    )
    retention_s: float = setting(60.0, help="how long a silent replica is still shown in the fleet", minimum=0)
    max_replicas: int = setting(4096, help="replicas held at once", minimum=1)
    max_watchers: int = setting(256, help="plan streams served at once", minimum=1)
    allocator: str = setting("resident", help=f"policy that plans: {', '.join(sorted(SERVING_POLICIES))}")
    cascade: str = setting(
        "",
        help="registered cascade that is planned, light>heavy or longer, in place of --allocator once it is registered",
    )
    handover_alpha: float = setting(
        0.95,
        help="share of its quality from noise that a hand-over profile has to promise of a cascade's later model",
        minimum=0.01,
        maximum=1,
    )
    handover_rule: RuleChoice = setting(
        RuleChoice.PROFILE,
        help="by which rule hand-over profiles are read: every measured picture kept its quality (minimum), surely 95 %"
        " of them (lower_bound), surely their mean (mean), or each by the rule that it names (profile)",
    )
    skip_light_below: float = setting(
        0.0,
        help="plans leave out a cascade's first model where the prompt alone tells that its picture is good enough with"
        " less than this probability, and its policy decides on no bound; 0 for never",
        minimum=0,
        maximum=1,
    )
    allocator_limit_s: float = setting(
        0.5, help="a policy that takes longer to decide is not waited for: the last good plan stands", minimum=0.01
    )
    state_dir: Path | None = setting(
        None, help="directory of the leader epoch; without it or a ledger the clock alone makes it grow"
    )
    ledger_url: str = setting(
        "", help="ledger of leader, last plan and registered models, shared by all controllers; empty for none"
    )
    objects_url: str = setting(
        "", help="object store that workers share, for LoRAs that are uploaded; with a ledger alone; empty for none"
    )
    max_lora_mib: int = setting(
        512,
        help="size of an uploaded LoRA, held in memory; twice as much of all together",
        minimum=1,
        maximum=4096,
    )
    removed_lora_keep_s: float = setting(
        3600.0, help="how long the file of a removed LoRA stays for requests under way", minimum=1
    )
    standby: bool = setting(False, help="wait until no other controller over this ledger leads, then take over")
    leader_lease_s: float = setting(
        2.0, help="silence of the leader after which a standby takes over", minimum=0.2, maximum=600
    )

    def __post_init__(self) -> None:
        if self.allocator not in SERVING_POLICIES:
            raise ValueError(
                f"--allocator must be one of {', '.join(sorted(SERVING_POLICIES))}, got {self.allocator!r}"
            )
        if self.standby and not self.ledger_url:
            raise ValueError("--standby needs a --ledger-url that the leader has too")
        if self.cascade and not (self.ledger_url and math.isfinite(self.serving.serving().slo_s)):
            raise ValueError("--cascade needs a --ledger-url, where it is registered, and a --slo-s")
        self.policy()

    @property
    def reuse_promise(self) -> ReusePromise:
        """What is asked of hand-over profiles."""
        return ReusePromise(self.handover_alpha, self.handover_rule.rule)

    def policy(self, handover: Handover | None = None) -> ServingPolicy:
        """Raises ValueError naming the flag that the policy lacks. `handover`: what is registered of the light model's
        pictures that go on to the heavy one; its f(t) takes the place of the settings' own."""
        serving = self.serving.serving()
        if handover is not None:
            serving = serving.handing_over(handover)
        try:
            check_needs(self.allocator, serving)
        except InvalidArgument as error:
            (lacking,) = error.violations
            raise ValueError(f"{_FLAGS[lacking.field]} {lacking.description}") from None
        return SERVING_POLICIES[self.allocator](serving)
