"""Settings of the gateway: flags, PENTIMENTO_VECTORDB_GATEWAY_… and the table [vectordb_gateway]."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pentimento.policies.cache_quota import CacheLimits
from pentimento.policies.cache_selection import (
    RENOISED_SHARE,
    RETAKEN_SHARE,
    SelectionRules,
    Threshold,
    Thresholds,
)
from pentimento.policies.followed_cache import CacheChoice
from pentimento.policies.reuse_rules import ReuseRules
from pentimento.profiles.catalogue import PromiseSettings
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.service.followed_profiles import FollowedProfiles
from pentimento.settings import setting
from pentimento.stores.vectors import IndexBuilding

_MEBIBYTE = 1024 * 1024
# Share of the from-scratch quality that given thresholds promise: both papers' alpha.
GIVEN_QUALITY = 0.9
# After that a lookup is a miss, times `part_wait_factor`.
SEARCH_TIMEOUT_S = 0.05
# The longest chain of images that start from one another: its last one is not reused.
MAX_ANCESTOR_DEPTH = 5


class EvictionChoice(Enum):
    """The effect of a full cache: the oldest entry goes, the lowest of another rule's ranking goes, or nothing new
    comes in."""

    FIFO = "fifo"
    LRU = "lru"
    LFU = "lfu"
    LCBFU = "lcbfu"
    AGED = "aged"
    NONE = "none"


class AdmissionChoice(Enum):
    """Choose the images that enter the cache: MoDM's cache-all or cache-large."""

    ALL = "all"
    LARGE = "large"


@dataclass(frozen=True)
class SelectionSettings:
    """When an entry is near enough: by given thresholds, else by the model's selector profile, else never."""

    profiles: tuple[Path, ...] = setting(
        (), help="files or directories of profiles; late LoRAs also have lora-bounds.json next to the LoRAs"
    )
    promise: PromiseSettings = field(default_factory=PromiseSettings)
    cache_bias: int | None = setting(
        None,
        help="tenths of the steps to move every K by; above 0 saves more than measured, 10 returns the stored image; "
        "empty: the plan's if followed, else 0",
        minimum=-10,
        maximum=10,
    )
    earned_reuse: bool = setting(
        True,
        help="allow reuse once trials show that it keeps quality",
    )
    thresholds: tuple[str, ...] = setting(
        (),
        help="latent:similarity:share instead of profiles: from that similarity on skip that share; image: for "
        "text-to-image similarity and images",
    )
    admission: AdmissionChoice = setting(
        AdmissionChoice.ALL,
        help="stored: every image and its latents (all), or only those from noise of a cascade's last stage "
        "(large); MoDM's cache-all and cache-large",
    )
    scratch_share: float = setting(
        0.0, help="share of lookups that miss on purpose, for diversity", minimum=0, maximum=1
    )
    renoised_share: float = setting(
        RENOISED_SHARE,
        help="share of its K steps by which a start of another seed is noised again; 0: images of one entry are the "
        "same",
        minimum=0,
        maximum=1,
    )

    def __post_init__(self) -> None:
        self.rules()

    def reuse(self) -> ReuseRules:
        """Return what decides on reuse. Raises ValueError for a malformed pair, InvalidArgument naming the file for a
        profile that cannot be read."""
        rule, bias = self.promise.profile_rule.rule, self.cache_bias or 0
        return ReuseRules(self.rules(), FollowedProfiles(self.profiles), rule, bias, earns=self.earned_reuse)

    def rules(self) -> SelectionRules:
        """Return the rules where no profile decides. Raises ValueError for a malformed pair."""
        found = _thresholds(self.thresholds)
        return SelectionRules(
            found["latent"],
            found["image"],
            GIVEN_QUALITY,
            keeps_images_of_hits=self.admission is AdmissionChoice.ALL,
            renoised_share=self.renoised_share,
            retaken_share=RETAKEN_SHARE,
        )


@dataclass(frozen=True)
class CapacitySettings:
    """How much the cache holds, and for how long what left it can still be read."""

    max_entries: int = setting(20_000, help="entries", minimum=1)
    max_size_bytes: int = setting(4096 * _MEBIBYTE, help="bytes of their latents and images", minimum=1)
    max_store_bytes: int = setting(
        0,
        help="bytes in the object store with evicted entries, at least --max-size-bytes; beyond: read-only; 0: "
        "no limit",
        minimum=0,
    )
    tenant_share: float = setting(1.0, help="share of entries and bytes per tenant", minimum=0.001, maximum=1)
    eviction: EvictionChoice | None = setting(
        None,
        help="when full: the oldest entry (fifo), single latents and images by use (lru, lfu, lcbfu, aged: uses "
        "decay), none (read-only); equal for all gateways of a ledger; empty: the plan's if followed, else aged",
    )

    def __post_init__(self) -> None:
        if 0 < self.max_store_bytes < self.max_size_bytes:
            # Nothing would be evicted, and nothing stored, ever again.
            raise ValueError(f"--max-store-bytes must be 0 or at least --max-size-bytes, {self.max_size_bytes}")

    def limits(self) -> CacheLimits:
        """Return the limits for the policy."""
        return CacheLimits(self.max_entries, self.max_size_bytes, self.tenant_share)


class MatchPredictorChoice(Enum):
    """When a predictor rules before a search: while that gains time, never, or always at a recall of 0.95."""

    AUTO = "auto"
    OFF = "off"
    ALWAYS = "always"


@dataclass(frozen=True)
class GatewayBounds:
    """Times and sizes of a gateway; tests pass shorter ones."""

    # Above the longest attempt of a worker, its queue included.
    grant_ttl_s: float = 900.0
    # The objects of an evicted entry stay for requests that run with them.
    object_grace_s: float = 120.0
    # Below this the cache is read-only: a ledger on the same disk still has room to delete.
    min_free_bytes: int = 256 * _MEBIBYTE
    maintenance_interval_s: float = 1.0
    # Between comparisons of index, objects and ledger, which list everything.
    reconcile_interval_s: float = 600.0
    # Between the three bad readings after which an object is set aside.
    quarantine_s: float = 3600.0
    building: IndexBuilding = field(default_factory=IndexBuilding)


@dataclass(frozen=True)
class GatewaySettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    selection: SelectionSettings
    capacity: CapacitySettings
    index_url: str = setting(help="edge:///directory or qdrant://host:port[?collection=…&tls=true&api_key_file=…]")
    objects_url: str = setting(
        help="object store: file:///directory or s3://bucket/prefix[?endpoint=…&region=…]; controller, empty: none"
    )
    ledger_url: str = setting(
        help="sqlite:////file or postgresql+psycopg://user@host/database?passfile=…; controller, empty: none"
    )
    grant_key_file: Path | None = setting(
        None, help="keys shared by gateways and workers, one per line; the first signs", must_exist=True
    )
    # `benchmarks.kill_any` and `benchmarks.soak` shorten these two for their processes.
    grant_ttl_s: float = setting(
        900.0, help="lifetime of a reservation; above the longest attempt with its queue", minimum=0.1, maximum=86_400
    )
    sweep_interval_s: float = setting(
        600.0, help="time between comparisons of objects, ledger and index", minimum=0.01, maximum=86_400
    )
    part_wait_factor: float = setting(
        1.0,
        help="times the waits for optional parts: embedder and prediction 250 ms, lookup 60 ms, search and reservation "
        "50 ms, score 1 s; larger on slow machines",
        minimum=0.001,
        maximum=10_000,
    )
    match_predictor: MatchPredictorChoice = setting(
        MatchPredictorChoice.AUTO,
        help="skip hopeless searches: while it gains time and a search takes 2 ms (auto), off, always",
    )
    follow_plan: bool = setting(
        False,
        help="take alpha, bias, eviction and admission from the plan unless set; needs a controller",
    )
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )

    def __post_init__(self) -> None:
        if self.follow_plan and not self.controller_address:
            raise ValueError("--follow-plan needs a --controller-address")

    def bounds(self) -> GatewayBounds:
        """Return the times and sizes of the gateway; the settings give two."""
        # No request that runs with an entry's objects outlasts its reservation.
        grace_s = min(GatewayBounds.object_grace_s, self.grant_ttl_s)
        return GatewayBounds(self.grant_ttl_s, grace_s, reconcile_interval_s=self.sweep_interval_s)

    def choice(self) -> CacheChoice:
        """Return what the operator chose of all that a plan may say of the cache."""
        eviction = self.capacity.eviction
        return CacheChoice(
            self.selection.promise.profile_alpha,
            self.selection.cache_bias,
            eviction.value if eviction is not None else None,
            self.selection.admission is AdmissionChoice.ALL,
        )


def _thresholds(entries: tuple[str, ...]) -> dict[str, Thresholds]:
    """Return the thresholds of each kind. Raises ValueError for a malformed entry."""
    found: dict[str, Thresholds] = {"latent": (), "image": ()}
    for entry in entries:
        kind, _, pair = entry.partition(":")
        similarity, _, share = pair.partition(":")
        try:
            if kind not in found:
                raise ValueError(f"no kind {kind!r:.40}")
            found[kind] += (Threshold(float(similarity), float(share)),)
        except ValueError as error:
            limit = "must be latent: or image: and similarity:share, such as latent:0.85:0.3"
            raise ValueError(f"--thresholds: {entry!r:.80} {limit} ({error})") from error
    return found
