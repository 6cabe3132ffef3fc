"""Define the settings of `python -m services.unet_worker.profiling`: flags, PENTIMENTO_PROFILE_…, table [profile]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice, WeightStorage
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.rules import RuleChoice, ThresholdRule
from pentimento.rpc import RpcChannelSettings
from pentimento.settings import setting

FIRST = {ProfileKind.REUSE: 600, ProfileKind.LORA: 64}
MANY = 200  # prompts of the other kinds


@dataclass(frozen=True)
class StudyRunSettings:
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="device of the models")
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision of the models")
    threads: int = setting(1, help="torch threads", minimum=1, maximum=256)
    max_batch: int = setting(16, help="images that share a denoising step", minimum=1, maximum=1024)
    weights: WeightStorage = setting(WeightStorage.AUTO, help="how weights are stored, as of the worker")
    compile: CompileMode = setting(CompileMode.AUTO, help="how the forward pass runs, as of the worker")


@dataclass(frozen=True)
class ProfileSettings:
    """Configure all kinds of profiles; the help names the kind if a setting serves only some. `features` takes all
    settings of `steps`."""

    channels: RpcChannelSettings
    study: StudyRunSettings
    model: Path = setting(help="diffusers directory of the model", must_exist=True)
    out: Path | None = setting(
        None, help="file to write; empty: MODEL-KIND.json here, for lora lora-bounds.json in the LoRAs' directory"
    )
    resume: bool = setting(False, help="keep the file's rows and measure only missing ones")
    prompts: Path | None = setting(
        None, help="prompts (.txt, .tsv, .csv, .jsonl), for reuse in arrival order; all but cost", must_exist=True
    )
    embedder_address: str = setting(
        "", help="embedder that measures similarity and quality: unix:/path or host:port; reuse, steps, handover"
    )
    light: Path | None = setting(
        None,
        help="diffusers directory; reuse: model that refines the images; handover: the earlier model",
        must_exist=True,
    )
    first: int = setting(
        0, help="prompts to use, from the first; 0: 600 for reuse, 64 for lora, else 200", minimum=0, maximum=100_000
    )
    alpha: float = setting(
        0.0,
        help="share of the quality without the shortcut that must be kept; 0: 0.9 for reused latents, else 0.95",
        minimum=0,
        maximum=1,
    )
    rule: RuleChoice = setting(
        RuleChoice.PROFILE,
        help="requirement: minimum (every image keeps alpha), lower_bound (95 % surely do), mean (the mean surely "
        "does); profile: mean for lora, else lower_bound; files have all three",
    )
    exhaustive: bool = setting(
        False,
        help="all but cost: measure each row until none holds, with all prompts; off: search the last row that holds "
        "by the rule, and end a row once its verdict by lower_bound is settled",
    )
    least_similarity: float = setting(
        0.4, help="reuse: text-to-text similarity below which pairs are skipped", minimum=-1, maximum=1
    )
    least_image_similarity: float = setting(
        0.3, help="reuse: text-to-image similarity below which pairs are skipped", minimum=-1, maximum=1
    )
    profiles: tuple[Path, ...] = setting(
        (), help="steps: files or directories with the reuse profile of the hits to thin too"
    )
    loras: Path | None = setting(
        None, help="lora, steps: directory of LoRAs, its registry.json, or files and folders by name", must_exist=True
    )
    with_loras: tuple[str, ...] = setting((), help="steps: names of LoRAs, all in every image, at scale 1")
    only: tuple[str, ...] = setting((), help="lora: LoRAs to measure; empty: all that change the model")
    steps: int = setting(
        0, help="steps: of the full run; cost: of an image; 0: the model's own, 10 for cost", minimum=0, maximum=1000
    )
    batch_sizes: tuple[int, ...] = setting(
        (1, 2, 4, 8, 16), help="cost: requests that share a step", minimum=1, maximum=1024
    )
    sizes: tuple[str, ...] = setting((), help="cost: WIDTHxHEIGHT in pixels; empty: the model's own")
    guidance_scales: tuple[float, ...] = setting((3.0,), help="cost: above 1: guided, 1: not", minimum=0)

    def first_of(self, kind: ProfileKind) -> int:
        return self.first or FIRST.get(kind, MANY)

    def rule_of(self, kind: ProfileKind) -> ThresholdRule:
        usual = ThresholdRule.MEAN if kind is ProfileKind.LORA else ThresholdRule.LOWER_BOUND
        return self.rule.rule or usual
