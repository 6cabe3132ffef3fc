"""Define the settings of the frontdoor: flags, PENTIMENTO_FRONTDOOR_… and the table [frontdoor]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.domain.safety import SUBJECTS
from pentimento.policies.cells import CellMap, read_cells
from pentimento.policies.latent_pairing import PairingMode
from pentimento.policies.residual_pipelining import PipeliningMode
from pentimento.policies.thinning import ThinningMode
from pentimento.profiles.catalogue import FeatureReuseMode, HandoverMode, PromiseSettings
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.settings import check_address
from pentimento.settings import setting

# Settings that need another one.
NEEDED = {
    "webhook_hosts": "signing_key_file",
    "c2pa_timestamp_url": "c2pa_certificate_file",
    "safety_checks": "discriminator_addresses",
}


@dataclass(frozen=True)
class RequestLimits:
    """Limit the requests of clients."""

    default_deadline_s: float = setting(120.0, help="least deadline of requests without one", minimum=0.001)
    max_deadline_s: float = setting(
        3600.0, help="longest deadline, and that of jobs without one", minimum=0.001, maximum=1_000_000
    )
    max_request_cost: float = setting(1e9, help="width x height x steps x images of a request", minimum=1)

    def __post_init__(self) -> None:
        if self.default_deadline_s > self.max_deadline_s:
            raise ValueError("--default-deadline-s must be at most --max-deadline-s")

    @property
    def max_deadline_ms(self) -> int:
        return round(self.max_deadline_s * 1000)


@dataclass(frozen=True)
class QualitySettings:
    """Limit the images that are generated again to be compared."""

    quality_sample_share: float = setting(
        0.02,
        help="share of hits to generate again from noise while idle; 0: no image is generated again or kept",
        minimum=0,
        maximum=1,
    )
    quality_work_share: float = setting(
        0.05, help="largest share of idle time and device seconds for generating images again", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class RetentionLimits:
    """Limit how long ended requests and their images are kept."""

    result_retention_h: float = setting(24.0, help="hours that finished requests and images are kept", minimum=0)
    tenant_result_bytes: int = setting(
        4 << 30, help="bytes of finished images per tenant; beyond, its oldest are deleted", minimum=0
    )
    sweep_interval_s: float = setting(
        600.0, help="time between comparisons of objects, ledger and index", minimum=0.01, maximum=86_400
    )


@dataclass(frozen=True)
class QuotaLimits:
    """Limit the unfinished requests of a tenant, and keep space free on the disks."""

    tenant_unfinished_requests: int = setting(2000, help="unfinished requests per tenant", minimum=1)
    tenant_input_bytes: int = setting(
        1 << 30,
        help="bytes of images of a tenant's unfinished requests, and as many of its pinned ones",
        minimum=0,
    )
    min_free_bytes: int = setting(
        512 << 20,
        help="free bytes on the disk of journal or images below which requests are rejected; half of it may be images "
        "in the journal while the object store is down",
        minimum=0,
    )

    @property
    def spool_bytes(self) -> int:
        """Return the bytes of images that the journal may hold while the object store is down."""
        return self.min_free_bytes // 2


@dataclass(frozen=True)
class FrontdoorSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    requests: RequestLimits
    quality: QualitySettings
    retention: RetentionLimits
    quotas: QuotaLimits
    promise: PromiseSettings
    ledger_url: str = setting(
        "sqlite:////var/lib/pentimento/frontdoor.sqlite",
        help="sqlite:////file or postgresql+psycopg://user@host/database?passfile=…; controller, empty: none",
    )
    objects_url: str = setting(
        "file:///var/lib/pentimento/objects",
        help="object store: file:///directory or s3://bucket/prefix[?endpoint=…&region=…]; controller, empty: none",
    )
    frontdoor_id: str = setting(
        "frontdoor", help="name of this dataplane, the same at every start; workers reject its older epochs"
    )
    cells: tuple[str, ...] = setting(
        (), help="all cells, NAME=ADDRESS, a frontdoor under its frontdoor-id; empty: the suite has one frontdoor"
    )
    cell_lists: tuple[str, ...] = setting(
        (),
        help="cells of tenants, NAME+NAME…: the list of new requests, then earlier ones until their requests' "
        "retention has ended; empty: all cells",
    )
    tenants_url: str = setting("", help="ledger of tenants, the same for all cells; empty: the journal's")
    embedder_address: tuple[str, ...] = setting(
        (),
        help="embedders to use while the plan has none; of several each states its space: one of images embeds images, "
        "and prompts that search for them; empty: no cache",
    )
    gateway_address: str = setting("", help="vectordb gateway; empty: no cache, and no page of it in the console")
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    admin_listen: tuple[str, ...] = setting((), help="addresses for the administration of tenants only; empty: none")
    advertise_address: str = setting(
        "", help="address for other processes; empty: the first of listen, with the host's name"
    )
    worker_addresses: tuple[str, ...] = setting((), help="workers to use besides those of the plan")
    queue_limit: int = setting(256, help="waiting requests per pool", minimum=0)
    drop_late: bool = setting(True, help="reject or drop requests that are predicted to miss their deadline")
    cascade: tuple[str, ...] = setting(
        (),
        help="models, light first: of requests without a model unless the plan names some, and of discriminators in "
        "the registry; the last, or only, one is the default; empty: the first by name",
    )
    confidence_threshold: float | None = setting(
        None,
        help="defer light images below it, if the plan has no threshold; empty: the discriminator's, else 0.5",
        maximum=1.0,
    )
    fall_back: bool = setting(
        True, help="return the light image if no discriminator scores it, or a heavier model fails or would be late"
    )
    discriminator_addresses: tuple[str, ...] = setting(
        (), help="discriminators besides those of the plan, for the cascades and the safety checks that each states"
    )
    safety_checks: tuple[str, ...] = setting(
        (), help="prompt, image or both; without a verdict nothing is returned; empty: none"
    )
    part_wait_factor: float = setting(
        1.0,
        help="times the waits for optional parts: embedder and prediction 250 ms, lookup 60 ms, search and reservation "
        "50 ms, score 1 s; larger on slow machines",
        minimum=0.001,
        maximum=10_000,
    )
    skip_light_below: float | None = setting(
        None,
        help="skip the light model if the prompt predicts a good image with less probability; 0: never; empty: as the "
        "plan or the discriminator says",
        maximum=1.0,
    )
    cache_cost_ms: float = setting(
        0.0,
        help="device time that cache or discriminator take from a request: while they save less, one request "
        "in 16 uses them; 0: none",
        minimum=0,
        maximum=60_000,
    )
    profiles: tuple[Path, ...] = setting(
        (), help="files or directories of profiles; late LoRAs also have lora-bounds.json next to the LoRAs"
    )
    record_effects: str = setting("", help="file for every event of the dataplane and its effects; empty: none")
    standby: bool = setting(False, help="wait until no other process over this ledger is active, then take over")
    lease_s: float = setting(
        2.0,
        help="silence of the leader before a standby takes over, and of a replica before it leaves the plan",
        minimum=0.2,
        maximum=600,
    )
    max_reruns: int = setting(2, help="further attempts of a request after lost workers", minimum=0, maximum=10)
    worker_silence_s: float = setting(
        2.5, help="silence after which a worker is lost; workers report every second", minimum=1.2, maximum=60
    )
    worker_wait_s: float = setting(30.0, help="wait for a worker at start", minimum=0)
    controlnet_pipelining: PipeliningMode = setting(
        PipeliningMode.AUTO, help="residuals one step old, for ControlNets with a profile; auto: if images waited"
    )
    latent_parallel: PairingMode = setting(
        PairingMode.DEADLINE,
        help="two workers halve a guided image if one is idle: never (off), with less than twice its time left "
        "(deadline), always",
    )
    thinning: ThinningMode = setting(
        ThinningMode.LOAD,
        help="skip steps of models with a profile: never (off), to meet deadlines (deadline), also under overload "
        "(load), always",
    )
    feature_reuse: FeatureReuseMode = setting(
        FeatureReuseMode.AUTO,
        help="reuse deep features of earlier steps, for models with a profile: if the request asks (asked), unless it "
        "refuses or its steps are binding (auto)",
    )
    handover: HandoverMode = setting(
        HandoverMode.AUTO,
        help="start a cascade's later model from the earlier one's image: if registered or measured (auto), or off",
    )
    tenant_grace_h: float = setting(
        72.0, help="hours before a deleted tenant's data is deleted", minimum=0, maximum=8784
    )
    receipt_key_file: Path | None = setting(
        None, help="PEM file of the ed25519 private key that signs receipts of erasures; empty: they have a digest"
    )
    c2pa_certificate_file: Path | None = setting(
        None,
        help="PEM file of certificates, the signer's first, and its private key (cat chain.pem key.pem), which sign "
        "images as C2PA content credentials; empty: unsigned",
    )
    c2pa_timestamp_url: str = setting(
        "", help="RFC 3161 timestamp authority, called for each signed image; empty: none"
    )
    signing_key_file: Path | None = setting(
        None,
        help="file of signing keys for addresses and webhooks, 64 hexadecimal digits a line; if it is missing, a "
        "frontdoor over SQLite and without cells makes it",
    )
    webhook_hosts: tuple[str, ...] = setting(
        (),
        help="hosts that webhooks may call: NAME, *.NAME or NAME:PORT, without TLS http://NAME, and private networks "
        "that these may be in, such as 10.0.0.0/8; empty: none",
    )
    webhook_ca_file: Path | None = setting(None, help="PEM authorities of webhook servers; empty: the system's")
    adopt_objects: bool = setting(False, help="take over another journal's objects: those without a row are swept")

    def __post_init__(self) -> None:
        for given, needed in NEEDED.items():
            if getattr(self, given) and not getattr(self, needed):
                raise ValueError(f"--{given.replace('_', '-')} needs --{needed.replace('_', '-')}")
        self._check_admin()
        if unknown := set(self.safety_checks) - SUBJECTS:
            raise ValueError(f"--safety-checks must be prompt and image, got {sorted(unknown)[0]!r:.80}")
        if not self.frontdoor_id:
            raise ValueError("--frontdoor-id must not be empty")
        self.read_cells()

    @property
    def default_model(self) -> str:
        """Return the model of requests that name none and have no stages; "" for the first by name."""
        return self.cascade[-1] if self.cascade else ""

    def read_cells(self) -> CellMap:
        """Return the cells. Raises ValueError."""
        found = read_cells(self.cells, self.cell_lists)
        if self.cells and self.frontdoor_id not in found.addresses:
            raise ValueError(f"--cells must have --frontdoor-id, got none named {self.frontdoor_id!r:.80}")
        return found

    @property
    def makes_signing_key(self) -> bool:
        """Return whether no frontdoor elsewhere needs the same keys: cells do, and standbys over PostgreSQL."""
        return not self.cells and self.ledger_url.startswith("sqlite:")

    def _check_admin(self) -> None:
        for address in self.admin_listen:
            check_address("--admin-listen", address)
        if self.admin_listen and self.rpc.token_file is None:
            raise ValueError("--admin-listen needs --token-file: without one every caller is an administrator")
        if set(self.admin_listen) & {address for address in self.rpc.listen if not address.endswith(":0")}:
            raise ValueError("--admin-listen must be other addresses than --listen")


@dataclass(frozen=True)
class FixedLimits:
    """Hold limits that no operator needs to choose; tests that run a frontdoor in their process construct others.

    `suspect_wait_s`: wait of a request that took down two workers for two live ones. `orphan_wait_s`: wait after a
    restart for an attempt's worker, before it runs again. `store_timeout_s`: wait for the object store before an image
    is spooled. `stream_idle_s`: clients that read nothing for this long are disconnected. `quality_quiet_s`: time
    without a request before a hit is generated again. Shares (0..1): of the misses that are generated again from the
    cache, where reuse is not allowed yet, and of deferred requests with compared light and heavy images.
    A webhook is called `webhook_tries` times, with pauses from `webhook_pause_s` on, doubled up to an hour.
    """

    suspect_wait_s: float = 10.0
    orphan_wait_s: float = 3.0
    store_timeout_s: float = 2.0
    stream_idle_s: float = 60.0
    quality_quiet_s: float = 2.0
    quality_trial_share: float = 0.25
    deferral_sample_share: float = 0.25
    tenant_finished_requests: int = 200_000
    webhook_timeout_s: float = 10.0
    webhook_tries: int = 12
    webhook_pause_s: float = 5.0


FIXED = FixedLimits()


@dataclass(frozen=True)
class RenewalSettings:
    """Hold the frontdoor's settings, for the journal's address, and the epoch that the next ones must exceed."""

    frontdoor: FrontdoorSettings
    above: int = setting(0, help="epoch that a worker knows; the journal's next ones are larger", minimum=0)
