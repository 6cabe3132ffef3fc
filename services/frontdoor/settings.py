"""Settings of the frontdoor: flags, PENTIMENTO_FRONTDOOR_… and the table [frontdoor]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.policies.latent_pairing import PairingMode
from pentimento.policies.residual_pipelining import PipeliningMode
from pentimento.policies.selector_profiling import RuleChoice
from pentimento.policies.shadow_painting import GivesWay
from pentimento.policies.thinning import ThinningMode
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.settings import check_address
from pentimento.settings import setting


@dataclass(frozen=True)
class FrontdoorSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    ledger_url: str = setting("sqlite:////var/lib/pentimento/frontdoor.sqlite", help="journal of accepted requests")
    objects_url: str = setting("file:///var/lib/pentimento/objects", help="object store of finished pictures")
    frontdoor_id: str = setting(
        "frontdoor", help="name of this dataplane, the same from start to start: workers fence off older epochs of it"
    )
    embedder_address: str = setting(
        "", help="embedder that is asked while the plan names none, or those are gone; empty for no cache"
    )
    gateway_address: str = setting("", help="vectordb gateway; empty for no cache")
    controller_address: str = setting(
        "", help="controller to register with and to take the plan from, and its standbys; empty for none"
    )
    admin_listen: tuple[str, ...] = setting(
        (), help="addresses to serve the administration of tenants on, and nothing else; empty for none"
    )
    advertise_address: str = setting(
        "", help="where others reach this process; empty for the first listen address, by the host's name"
    )
    worker_addresses: tuple[str, ...] = setting((), help="workers to use whether the plan names them or not")
    default_model: str = setting("", help="model of requests that name none; empty for the first by name")
    calls_per_key: int = setting(4, help="open calls with one idempotency key", minimum=1)
    queue_limit: int = setting(256, help="requests of a pool that wait for a worker", minimum=0)
    drop_late: bool = setting(True, help="refuse or drop requests that are predicted to miss their deadline")
    cascade: tuple[str, ...] = setting(
        (), help="models that paint requests which name none, light first, where the plan says nothing of it"
    )
    confidence_threshold: float = setting(
        0.0, help="a light picture below it goes on to the next model, where the plan has no threshold", maximum=1.0
    )
    accept_unscored: bool = setting(True, help="keep a light picture that no discriminator answers for; else go on")
    fall_back: bool = setting(True, help="a light picture stands in where a heavier one fails or would be late")
    discriminator_addresses: tuple[str, ...] = setting((), help="discriminators, beside those of the plan")
    score_timeout_ms: int = setting(1000, help="wait for a discriminator before the next one is asked", minimum=1)
    skip_light_below: float | None = setting(
        None,
        help="leave out the light model where a discriminator tells by the prompt alone that its picture is good enough"
        " with less than this probability; 0 for never; none: the plan's bound, where it has one",
        maximum=1.0,
    )
    cache_cost_ms: float = setting(
        0.0,
        help="milliseconds of the workers' device time that a lookup, or a discriminator, takes for a request; while a"
        " tenant's hits save less, one of its requests in 16 asks the cache, and a light stage that costs more than it"
        " saves is skipped; 0: the services have processors of their own",
        minimum=0,
        maximum=60_000,
    )
    foresee_timeout_ms: int = setting(50, help="wait for what a prompt tells, where that is asked", minimum=1)
    profiles: tuple[str, ...] = setting(
        (), help="files of `pentimento bench profile`, or directories of them, which predictions start from"
    )
    record_effects: str = setting("", help="file for every event of the dataplane with its effects; empty for none")
    standby: bool = setting(False, help="wait until no other frontdoor over this journal is active, then take over")
    lease_s: float = setting(2.0, help="silence of the active frontdoor after which a standby takes over", minimum=0.2)
    max_reruns: int = setting(2, help="further attempts at a request whose workers were lost", minimum=0, maximum=10)
    suspect_wait_s: float = setting(
        10.0, help="a request that took two workers down waits so long for a second one to be there", minimum=0
    )
    orphan_wait_s: float = setting(
        3.0, help="after a restart, wait for the worker of an attempt before it is run anew", minimum=0, maximum=60
    )
    worker_silence_s: float = setting(
        2.5, help="silence after which a worker is lost; it speaks once a second", minimum=1.2, maximum=60
    )
    worker_wait_s: float = setting(30.0, help="wait at start for a worker before serving without", minimum=0)
    default_deadline_s: float = setting(120.0, help="deadline of requests that name none, at least", minimum=0.001)
    default_deadline_factor: float = setting(
        3.0, help="such deadlines are at least this many times what the request's steps take, as measured", minimum=0
    )
    job_deadline_s: float = setting(
        3600.0, help="deadline of jobs that name none, where max-deadline-s is not less", minimum=0.001
    )
    max_deadline_s: float = setting(3600.0, help="longest deadline", minimum=0.001, maximum=1_000_000)
    max_prompt_bytes: int = setting(8192, help="bytes of a prompt in UTF-8", minimum=1)
    max_request_cost: float = setting(1e9, help="width x height x steps x pictures of a request", minimum=1)
    max_images: int = setting(10, help="pictures of one request", minimum=1, maximum=100)
    max_init_image_bytes: int = setting(8 << 20, help="bytes of an image to start from", minimum=1)
    max_loras: int = setting(8, help="LoRAs of one request", minimum=0)
    max_controlnets: int = setting(4, help="ControlNets of one request", minimum=0)
    max_conditioning_image_bytes: int = setting(8 << 20, help="bytes of an image that a ControlNet goes by", minimum=1)
    controlnet_pipelining: PipeliningMode = setting(
        PipeliningMode.AUTO,
        help="when residuals of the step before stand in for a step's own, of ControlNets that were measured for it:"
        " off, on, or auto, where pictures were seen to wait",
    )
    controlnet_wait_share: float = setting(
        0.2, help="share of a step from which waiting for residuals is too long", minimum=0.01, maximum=1
    )
    latent_parallel: PairingMode = setting(
        PairingMode.DEADLINE,
        help="which guided pictures two workers paint, a half of the guidance each, where one idles: none (off),"
        " those with less than twice their own time left (deadline), or all (always)",
    )
    thinning: ThinningMode = setting(
        ThinningMode.OFF,
        help="when steps are left out of pictures whose model has a thinning profile, unless the request's number of"
        " steps is binding: never (off), to meet a deadline (deadline), also where more is asked for than can be"
        " painted (load), or as many as may be (always)",
    )
    thinning_profiles: tuple[Path, ...] = setting(
        (), help="files or directories that `pentimento bench thinning-profile` wrote"
    )
    thinning_alpha: float = setting(
        0.95, help="share of the full run's quality that a profile has to promise", minimum=0.01, maximum=1
    )
    thinning_rule: RuleChoice = setting(
        RuleChoice.PROFILE,
        help="by which rule thinning profiles are read: every measured picture kept its quality (minimum), surely 95 %"
        " of them (lower_bound), surely their mean (mean), or each by the rule that it names (profile)",
    )
    cached_thinned_share: float = setting(
        0.99,
        help="pictures that left out steps enter the cache where so much of the full run's quality is kept in the mean",
        minimum=0,
        maximum=1,
    )
    adapter_load_s: float = setting(
        0.5, help="what it counts against a worker, in seconds, that it would have to load a LoRA first", minimum=0
    )
    quality_sample_share: float = setting(
        0.02, help="share of hits that are painted again from noise when nobody waits; 0 for none", minimum=0, maximum=1
    )
    deferral_sample_share: float = setting(
        0.25,
        help="share of deferred requests whose light image is compared with the heavy model's, for plans; 0 for none",
        minimum=0,
        maximum=1,
    )
    quality_work_share: float = setting(
        0.05, help="share of the time that painting hits again may take at most", minimum=0, maximum=1
    )
    quality_quiet_s: float = setting(2.0, help="seconds without a request before a hit is painted again", minimum=0)
    quality_gives_way: GivesWay = setting(
        GivesWay.SUITE,
        help="painting a hit again stops for any request (suite), or for those on its worker alone (worker: devices"
        " that share nothing)",
    )
    embed_timeout_ms: int = setting(250, help="wait for the embedder before the cache is skipped", minimum=1)
    lookup_timeout_ms: int = setting(60, help="wait for the lookup before painting from noise", minimum=1)
    reserve_timeout_ms: int = setting(50, help="wait for a place in the cache before doing without", minimum=1)
    stream_idle_s: float = setting(60.0, help="cut off clients that read nothing for so long", minimum=0.1)
    result_retention_h: float = setting(24.0, help="hours that finished requests and pictures are kept", minimum=0)
    quarantine_s: float = setting(
        3600.0, help="between the three bad readings after which an image is given up", minimum=0.01, maximum=604_800
    )
    tenant_grace_h: float = setting(
        72.0, help="hours after which the data of a deleted tenant are deleted, too", minimum=0, maximum=8784
    )
    max_pin_h: float = setting(2160.0, help="longest time that a picture may be pinned, in hours", minimum=0.001)
    tenant_pinned_bytes: int = setting(
        1 << 30, help="bytes that a tenant may have pinned: what its pictures started from and came with", minimum=0
    )
    tenant_result_bytes: int = setting(
        4 << 30, help="bytes of finished pictures kept of a tenant; beyond, its oldest are forgotten", minimum=0
    )
    tenant_finished_requests: int = setting(
        200_000, help="finished requests kept of a tenant; beyond, its oldest are forgotten", minimum=1
    )
    tenant_unfinished_requests: int = setting(2000, help="unfinished requests of a tenant", minimum=1)
    tenant_unfinished_bytes: int = setting(
        1 << 30, help="bytes of the images that unfinished requests of a tenant came with", minimum=0
    )
    store_timeout_ms: int = setting(2000, help="wait for the object store before a picture is spooled", minimum=1)
    spool_bytes: int = setting(
        256 << 20, help="bytes of pictures that the journal keeps while the object store is away", minimum=0
    )
    tenant_spool_bytes: int = setting(128 << 20, help="of these, bytes of one tenant", minimum=0)
    min_free_bytes: int = setting(
        512 << 20, help="bytes left on the disk of journal or pictures below which nothing is accepted", minimum=0
    )
    signing_key_file: Path | None = setting(
        None,
        help="file of 64 hexadecimal digits, or several lines: addresses of pictures and webhooks are signed with it",
    )
    make_signing_key: bool = setting(False, help="make that file where there is none")
    result_url_s: float = setting(
        3600.0, help="for how long the address of a picture lives that names no time", minimum=1
    )
    max_result_url_s: float = setting(
        86_400.0, help="longest life of such an address, at most 7 days; 0 for none", minimum=0, maximum=604_800
    )
    webhook_hosts: tuple[str, ...] = setting(
        (), help="hosts that webhooks of jobs may call: NAME, *.NAME or NAME:PORT; empty for no webhooks"
    )
    webhook_networks: tuple[str, ...] = setting(
        (), help="networks such as 10.0.0.0/8 that webhooks may call although they are not public"
    )
    webhook_plain_http: bool = setting(False, help="webhooks may be called without TLS")
    webhook_ca_file: Path | None = setting(
        None, help="PEM authorities that webhooks' servers are believed by, instead of the system's"
    )
    webhook_timeout_s: float = setting(10.0, help="time that one call of a webhook may take", minimum=0.1, maximum=60)
    webhook_tries: int = setting(12, help="calls of one webhook that nobody answers", minimum=1, maximum=100)
    webhook_pause_s: float = setting(
        5.0,
        help="pause after its first failed call; each is twice as long as the one before, up to an hour",
        minimum=0.01,
    )
    adopt_objects: bool = setting(
        False, help="objects that another journal left in the object store are this one's: those no row names are swept"
    )
    sweep_interval_s: float = setting(600.0, help="seconds between sweeps for objects nobody names", minimum=0.01)

    def __post_init__(self) -> None:
        if self.default_deadline_s > self.max_deadline_s:
            raise ValueError("--default-deadline-s must be at most --max-deadline-s")
        if self.webhook_hosts and self.signing_key_file is None:
            raise ValueError("--webhook-hosts needs --signing-key-file")
        if self.make_signing_key and self.signing_key_file is None:
            raise ValueError("--make-signing-key needs --signing-key-file")
        self._check_admin()
        if not self.frontdoor_id:
            raise ValueError("--frontdoor-id must not be empty")

    def _check_admin(self) -> None:
        for address in self.admin_listen:
            check_address("--admin-listen", address)
        if self.admin_listen and self.rpc.token_file is None:
            raise ValueError("--admin-listen needs --token-file: without one everybody is an administrator")
        if set(self.admin_listen) & {address for address in self.rpc.listen if not address.endswith(":0")}:
            raise ValueError("--admin-listen must be other addresses than --listen")


@dataclass(frozen=True)
class RenewalSettings:
    """What the frontdoor itself is given, of which the journal's address counts, and the epoch to rise above."""

    frontdoor: FrontdoorSettings
    above: int = setting(0, help="an epoch that a worker believes in; the journal's next ones are larger", minimum=0)
