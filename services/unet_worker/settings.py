"""Settings of the UNet worker: flags, PENTIMENTO_UNET_WORKER_… and the table [unet_worker]."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pentimento.devices.claims import DeviceClaim, claim_gpu
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.settings import setting
from pentimento.tensors.regions import DEFAULT_DIRECTORY


class DeviceChoice(Enum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class DtypeChoice(Enum):
    """`auto`: float32 on a CPU, float16 on a GPU."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class CompileChoice(Enum):
    """`auto`: `capture` on a GPU, else off. `compile`: torch.compile; `graphs`: CUDA graphs besides. Both take a while
    before the worker serves. `capture`: CUDA graphs of the pass as it is, those of its two halves too."""

    AUTO = "auto"
    OFF = "off"
    COMPILE = "compile"
    GRAPHS = "graphs"
    CAPTURE = "capture"


class KernelChoice(Enum):
    """`fused`: normalisations with what stands before and behind them, GEGLU and sums, by kernels in Triton. A GPU
    alone. `auto`: there, where one could be compiled and run."""

    AUTO = "auto"
    OFF = "off"
    FUSED = "fused"


class LatentFormatChoice(Enum):
    """`exact`: in the precision that the model runs in; the others: float32 in half precision, `deflate` compressed."""

    EXACT = "exact"
    EXACT_DEFLATE = "exact-deflate"
    FLOAT16 = "float16"
    FLOAT16_DEFLATE = "float16-deflate"
    BFLOAT16 = "bfloat16"
    BFLOAT16_DEFLATE = "bfloat16-deflate"


class SkipMissing(Enum):
    """Which of a worker's models may be missing. `all`: without its own it serves nothing."""

    OFF = "off"
    OTHERS = "others"
    ALL = "all"


@dataclass(frozen=True)
class UnetWorkerSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    model: Path = setting(help="diffusers checkpoint directory (safetensors only)")
    skip_missing: SkipMissing = setting(
        SkipMissing.OFF,
        help="models that may be missing, which a line of the log says: none (off), those of other_models (others), or"
        " its own too, without which it serves nothing (all)",
    )
    model_name: str = setting("", help="name that requests use; empty for the directory's name")
    expected_model_digest: str = setting(
        "", help="sha256:… that the model must have; empty: by registry.json beside it, else any"
    )
    accept_other_digest: bool = setting(False, help="serve models that are not the ones their registry.json expects")
    other_models: tuple[Path, ...] = setting(
        (),
        help="checkpoint directories that a plan may have it hold instead, by their names; with @sha256:… behind it one"
        " is held with that digest alone",
    )
    adapters_dir: Path | None = setting(
        None, help="directory of LoRAs: its registry.json, or its files and folders by name", must_exist=True
    )
    lora_bounds: Path | None = setting(
        None,
        help="file of `pentimento bench lora-bound`: how many steps may run without each LoRA; empty for the"
        " lora-bounds.json beside them, if any",
        must_exist=True,
    )
    lora_memory_mib: int = setting(1024, help="host memory for LoRAs that were used lately", minimum=0)
    lora_cache_dir: Path | None = setting(
        None, help="directory for LoRAs that were uploaded to the object store; without it none of those are served"
    )
    lora_cache_mib: int = setting(8192, help="disk for uploaded LoRAs that were used lately", minimum=1)
    objects_url: str = setting("file:///var/lib/pentimento/objects", help="object store of latents and images")
    grant_key_file: Path | None = setting(
        None, help="keys shared with the gateway, one a line, by which its grants are known", must_exist=True
    )
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="where the model runs")
    device_claims_dir: Path | None = setting(
        None,
        help="directory of the host's processes in which each claims a GPU by a lock, and sees no other one; none: the"
        " first GPU",
        must_exist=True,
    )
    claims_per_device: int = setting(
        1,
        help="workers that may claim one GPU, sharing its memory; one that finds none free ends",
        minimum=1,
        maximum=64,
    )
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision that the model runs in")
    threads: int = setting(1, help="torch threads of the model", minimum=1, maximum=256)
    default_steps: int = setting(
        0, help="steps of requests that name none; 0: by registry.json, else those of the model's kind", minimum=0
    )
    default_guidance_scale: float = setting(
        -1.0,
        help="guidance of requests that name none; below 0: by registry.json, else that of the model's kind",
        minimum=-1,
        maximum=100,
    )
    max_steps: int = setting(1000, help="most steps of a request", minimum=1, maximum=1000)
    max_size_px: int = setting(0, help="longest side of a picture; 0: twice the model's own", minimum=0, maximum=8192)
    max_prompt_chars: int = setting(10_000, help="characters of a prompt", minimum=1)
    prompt_memo_entries: int = setting(256, help="encoded prompts kept", minimum=1)
    max_batch: int = setting(8, help="most requests that share a denoising step", minimum=1, maximum=64)
    memory_budget_mib: int = setting(
        0,
        help="memory that weights and batches may take; 0: nine tenths of what there is, shared where a GPU is",
        minimum=0,
    )
    warm_up_s: float = setting(
        10.0,
        help="time before serving to measure batches of more than one; what is left is measured when idle",
        minimum=0,
    )
    preempt: bool = setting(True, help="let a request with a shorter deadline take the place of one that runs")
    aging_limit_s: float = setting(
        30.0, help="when a request without a deadline, or with a later one, is due after it came", minimum=0
    )
    compile: CompileChoice = setting(CompileChoice.AUTO, help="how the model's forward pass is run")
    kernels: KernelChoice = setting(KernelChoice.AUTO, help="fused kernels in the model's layers; they need a GPU")
    compile_halves: bool = setting(
        False,
        help="compile the two halves of a pass too, for pictures under ControlNets: three compilations instead of one"
        " before the worker serves",
    )
    credits: int = setting(
        0, help="attempts held at once, but for those that are about to end; 0: a batch", minimum=0, maximum=256
    )
    progress_interval_ms: int = setting(100, help="least time between two progress messages", minimum=0)
    preview_side_px: int = setting(128, help="longest side of a preview", minimum=8, maximum=1024)
    orphan_s: float = setting(10.0, help="how long an attempt outlives its stream", minimum=0)
    donor_timeout_s: float = setting(
        2.0, help="wait for a cached latent or image before painting from noise", minimum=0
    )
    upload_timeout_s: float = setting(2.0, help="wait for uploads once the picture is done", minimum=0)
    latent_format: LatentFormatChoice = setting(
        LatentFormatChoice.EXACT, help="what latents are stored as in the cache; any format is read"
    )
    shared_memory_dir: str = setting(
        str(DEFAULT_DIRECTORY),
        help="directory in memory that ControlNet replicas of its host share, closed to others; empty: tensors go in"
        " chunks",
    )
    step_lines: bool = setting(
        True,
        help="steps go to ControlNet replicas and peers of its host through that memory alone, not over gRPC",
    )
    share_device_memory: bool = setting(
        False,
        help="hand tensors over in the CUDA device's memory to ControlNet replicas that compute on the same device",
    )
    trace_file: str = setting(
        "", help="file that gets a line for each forward pass, with its begin and end; empty: none is written"
    )
    controller_address: str = setting("", help="controller to register with, and its standbys; empty for none")
    profiles: tuple[str, ...] = setting(
        (),
        help="files of `pentimento bench profile`, or directories of them; the controller is told what those of its"
        " models say",
    )
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )

    def __post_init__(self) -> None:
        if self.missing and self.skip_missing is not SkipMissing.ALL:
            raise ValueError(f"--model: {self.missing}")

    @property
    def missing(self) -> str:
        """Return what the process cannot serve without, "" where it is there."""
        return "" if self.model.exists() else f"no such file or directory: {self.model}"

    def claim_gpu(self) -> DeviceClaim | None:
        """Claim a GPU for this process, where it may run on one. Raises FailedPrecondition NO_FREE_DEVICE."""
        folder = self.device_claims_dir if self.device is not DeviceChoice.CPU else None
        return claim_gpu(folder, "unet_worker", self.claims_per_device)


@dataclass(frozen=True)
class EmulatedWorkerSettings:
    """Of `python -m services.unet_worker.emulation`: flags, PENTIMENTO_EMULATED_WORKER_… and the table
    [emulated_worker]. What is not here, the fleet's file says."""

    rpc: RpcServerSettings
    channels: RpcChannelSettings
    fleet: Path = setting(help="TOML file of the fleet that this worker is one of", must_exist=True)
    devices: str = setting(help="name of the entry under [[devices]] that it stands for")
    objects_url: str = setting("file:///var/lib/pentimento/objects", help="object store of latents and images")
    grant_key_file: Path | None = setting(
        None, help="keys shared with the gateway, one a line, by which its grants are known", must_exist=True
    )
    max_prompt_chars: int = setting(10_000, help="characters of a prompt", minimum=1)
    aging_limit_s: float = setting(
        30.0, help="when a request without a deadline, or with a later one, is due after it came", minimum=0
    )
    credits: int = setting(
        0, help="attempts held at once, but for those that are about to end; 0: a batch", minimum=0, maximum=256
    )
    progress_interval_ms: int = setting(
        1000, help="least time between two progress messages; many devices share this machine", minimum=0
    )
    orphan_s: float = setting(10.0, help="how long an attempt outlives its stream", minimum=0)
    donor_timeout_s: float = setting(
        2.0, help="wait for a cached latent or image before painting from noise", minimum=0
    )
    upload_timeout_s: float = setting(2.0, help="wait for uploads once the picture is done", minimum=0)
    controller_address: str = setting(
        "", help="controller to register with and whose plan it follows, and its standbys; empty for none"
    )
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )


@dataclass(frozen=True)
class ProfileSettings:
    """Of `python -m services.unet_worker.profile`: flags, PENTIMENTO_BENCH_PROFILE_… and the table [bench_profile]."""

    model: Path = setting(help="diffusers checkpoint directory (safetensors only)", must_exist=True)
    out: Path = setting(Path("profile.json"), help="where the profile is written")
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="where the model runs")
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision that the model runs in")
    threads: int = setting(1, help="torch threads of the model", minimum=1, maximum=256)
    compile: CompileChoice = setting(CompileChoice.AUTO, help="how the model's forward pass is run")
    kernels: KernelChoice = setting(KernelChoice.AUTO, help="fused kernels in the model's layers; they need a GPU")
    batch_sizes: tuple[int, ...] = setting((1, 2, 4, 8, 16), help="requests that share a step", minimum=1, maximum=1024)
    sizes: tuple[str, ...] = setting((), help="WIDTHxHEIGHT in pixels; empty for the model's own")
    guidance_scales: tuple[float, ...] = setting((3.0,), help="one above 1 is guided, one of 1 is not", minimum=0)
    steps: int = setting(10, help="denoising steps of a picture", minimum=1, maximum=1000)
    repeats: int = setting(5, help="pictures of each kind that are measured, after one that is not", minimum=1)


@dataclass(frozen=True)
class DescribeAdapterSettings:
    """Of `python -m services.unet_worker.describe_adapter`: flags, PENTIMENTO_DESCRIBE_ADAPTER_… and the table
    [describe_adapter]."""

    adapter: Path = setting(help="directory of a LoRA or a ControlNet (safetensors only)", must_exist=True)


@dataclass(frozen=True)
class DescribeSettings:
    """Of `python -m services.unet_worker.describe`: flags, PENTIMENTO_DESCRIBE_… and the table [describe]."""

    model: Path = setting(help="diffusers checkpoint directory (safetensors only)", must_exist=True)
    name: str = setting("", help="registry name of the model; empty for its directory's")
    profiles: tuple[str, ...] = setting((), help="files of `bench profile` of this model, one a device")
    steps: int = setting(
        0, help="steps of requests that name none; 0 for those of its registry or kind", minimum=0, maximum=1000
    )
    guidance_scale: float = setting(
        -1.0, help="guidance of requests that name none; negative for that of its registry or kind"
    )


@dataclass(frozen=True)
class StudyPaintingSettings:
    """How the pictures are painted by which `selector_profile`, `handover_profile`, `thinning_profile` and
    `lora_bound` tell what a model bears."""

    seed: int = setting(0, help="seed of the first prompt's picture", minimum=0)
    device: DeviceChoice = setting(DeviceChoice.AUTO, help="where the models run")
    dtype: DtypeChoice = setting(DtypeChoice.AUTO, help="precision that the models run in")
    threads: int = setting(1, help="torch threads of the models", minimum=1, maximum=256)
    max_batch: int = setting(16, help="pictures that share a denoising step", minimum=1, maximum=1024)


@dataclass(frozen=True)
class SelectorProfileSettings:
    """Of `python -m services.unet_worker.selector_profile`: flags, PENTIMENTO_BENCH_SELECTOR_PROFILE_… and the table
    [bench_selector_profile]."""

    channels: RpcChannelSettings
    painting: StudyPaintingSettings
    model: Path = setting(help="diffusers checkpoint directory whose latents and images are reused", must_exist=True)
    prompts: Path = setting(help="prompts in the order they came (.txt, .tsv, .csv, .jsonl)", must_exist=True)
    embedder_address: str = setting(help="embedder that measures similarity and quality: unix:/path or host:port")
    small_model: Path | None = setting(
        None, help="directory of the model that refines the other one's images; none for latents alone", must_exist=True
    )
    out: Path = setting(Path("selector-profiles"), help="directory that the profiles are written to")
    samples: bool = setting(False, help="write what every pair showed beside the profiles (.samples.jsonl)")
    first: int = setting(600, help="prompts that are taken, from the first on", minimum=2, maximum=100_000)
    latent_alpha: float = setting(
        0.9, help="share of the quality from scratch that latents must keep", minimum=0.01, maximum=1
    )
    image_alpha: float = setting(
        0.95, help="share of the other model's quality from scratch that images must keep", minimum=0.01, maximum=1
    )
    rule: ThresholdRule = setting(
        ThresholdRule.LOWER_BOUND,
        help="which threshold of a K is used: minimum (every sample keeps alpha), lower_bound (surely 95 % of them),"
        " mean (surely their mean); the files have all three",
    )
    least_similarity: float = setting(
        0.4, help="text to text, below which pairs are not painted", minimum=-1, maximum=1
    )
    least_image_similarity: float = setting(
        0.3, help="text to image, below which pairs are not painted", minimum=-1, maximum=1
    )


@dataclass(frozen=True)
class HandoverProfileSettings:
    """Of `python -m services.unet_worker.handover_profile`: flags, PENTIMENTO_BENCH_HANDOVER_PROFILE_… and the table
    [bench_handover_profile]."""

    channels: RpcChannelSettings
    painting: StudyPaintingSettings
    model: Path = setting(help="diffusers checkpoint directory of the later model", must_exist=True)
    light_model: Path = setting(help="the same of the model before it, from whose pictures it starts", must_exist=True)
    prompts: Path = setting(help="prompts to paint (.txt, .tsv, .csv, .jsonl); repeats count once", must_exist=True)
    embedder_address: str = setting(help="embedder that measures quality: unix:/path or host:port")
    out: Path = setting(Path("handover-profiles"), help="directory that the profile is written to")
    first: int = setting(200, help="prompts that are taken, from the first on", minimum=1, maximum=100_000)
    alpha: float = setting(
        0.95, help="share of its quality from noise that the later model must keep", minimum=0.01, maximum=1
    )
    rule: ThresholdRule = setting(
        ThresholdRule.LOWER_BOUND,
        help="what is asked of the pictures: minimum (every one keeps alpha), lower_bound (surely 95 % of them), mean"
        " (surely their mean); the file says of each share which rules allow it",
    )
    shares: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        help="shares of the later model's steps that are left out, tried from the smallest on",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class ThinningProfileSettings:
    """Of `python -m services.unet_worker.thinning_profile`: flags, PENTIMENTO_BENCH_THINNING_PROFILE_… and the table
    [bench_thinning_profile]."""

    channels: RpcChannelSettings
    painting: StudyPaintingSettings
    model: Path = setting(help="diffusers checkpoint directory whose steps are left out", must_exist=True)
    prompts: Path = setting(help="prompts to paint (.txt, .tsv, .csv, .jsonl); repeats count once", must_exist=True)
    embedder_address: str = setting(help="embedder that measures quality: unix:/path or host:port")
    out: Path = setting(Path("thinning-profiles"), help="directory that the profile is written to")
    add: bool = setting(False, help="keep the rows of the file that is there, and measure those that it lacks alone")
    samples: bool = setting(False, help="write what every picture showed beside the profile (.samples.jsonl)")
    loras: Path | None = setting(None, help="directory of the LoRAs that are named", must_exist=True)
    with_loras: tuple[str, ...] = setting((), help="names of LoRAs, all of them in every picture, at a scale of 1")
    selector_profile: Path | None = setting(
        None, help="selector profile of the model's latents: hits that it allows are thinned, too", must_exist=True
    )
    first: int = setting(200, help="prompts that are taken, from the first on", minimum=1, maximum=100_000)
    alpha: float = setting(
        0.95, help="share of the full run's quality that thinned pictures must keep", minimum=0.01, maximum=1
    )
    rule: ThresholdRule = setting(
        ThresholdRule.LOWER_BOUND,
        help="what is asked of the pictures: minimum (every one keeps alpha), lower_bound (surely 95 % of them), mean"
        " (surely their mean); the file says of each thinning which rules allow it",
    )
    steps: int = setting(0, help="steps of the full run; 0 for the model's own", minimum=0, maximum=1000)
    begin: tuple[float, ...] = setting(
        (0.0, 0.1, 0.2, 0.4, 0.6), help="shares of the schedule from which on steps are left out", minimum=0, maximum=1
    )
    keep: tuple[float, ...] = setting(
        (0.8, 0.65, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1),
        help="shares of the remaining steps that are taken, tried from the largest on",
        minimum=0,
        maximum=1,
    )
    spacing: tuple[float, ...] = setting(
        (1.0, 1.5),
        help="how the gaps between the steps that are taken grow: 1 for even ones, more for more steps early;"
        " each is measured",
        minimum=1,
        maximum=3,
    )


@dataclass(frozen=True)
class LoraBoundSettings:
    """Of `python -m services.unet_worker.lora_bound`: flags, PENTIMENTO_BENCH_LORA_BOUND_… and the table
    [bench_lora_bound]."""

    painting: StudyPaintingSettings
    model: Path = setting(help="diffusers checkpoint directory that the LoRAs change", must_exist=True)
    loras: Path = setting(
        help="directory of LoRAs: its registry.json, or its files and folders by name", must_exist=True
    )
    prompts: Path = setting(help="prompts to paint (.txt, .tsv, .csv, .jsonl)", must_exist=True)
    out: Path | None = setting(
        None,
        help="file of bounds that is written, or added to; lora-bounds.json in the directory of the LoRAs",
    )
    only: tuple[str, ...] = setting((), help="names of the LoRAs to measure; empty for all that change the model")
    first: int = setting(128, help="prompts that are taken, from the first on", minimum=1, maximum=100_000)
    steps: tuple[int, ...] = setting(
        (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25), help="numbers of steps without the LoRA that are tried", minimum=1
    )
    rule: ThresholdRule = setting(
        ThresholdRule.MEAN,
        help="what is asked of the pictures: minimum (every one is kept), lower_bound (surely 95 % of them), mean"
        " (surely their mean); the file says of each K which rules allow it",
    )
