"""Settings of the HTTP edge: flags, PENTIMENTO_EDGE_… and the table [edge]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.settings import MEBIBYTE, check_http_address
from pentimento.settings import setting


@dataclass(frozen=True)
class HttpSettings:
    """What a client of the HTTP listener may take of this process before and after anybody knows who it is."""

    http_listen: str = setting(
        "127.0.0.1:50480", help="host:port of the HTTP API; port 0 takes a free one; TLS as on host:port of `listen`"
    )
    http_connections: int = setting(1024, help="HTTP connections at once; more are closed", minimum=1)
    max_header_bytes: int = setting(
        16 * 1024, help="request line and headers of a request; more is answered 431", minimum=1024, maximum=MEBIBYTE
    )
    max_body_bytes: int = setting(
        16 * MEBIBYTE, help="body of one request; more is answered 413 before it is read", minimum=1024
    )
    max_bodies_bytes: int = setting(
        256 * MEBIBYTE, help="bodies that are held at once; more are answered 503 with Retry-After", minimum=1024
    )
    max_unread_bytes: int = setting(
        256 * MEBIBYTE,
        help="answers that clients have not read yet, all together; beyond it those end that are read the longest",
        minimum=1024,
    )
    max_parts: int = setting(64, help="parts of a multipart body", minimum=1, maximum=1000)
    header_timeout_s: float = setting(10.0, help="within which the head of a request must arrive", minimum=0.1)
    body_timeout_s: float = setting(60.0, help="within which its body must arrive", minimum=0.1)
    idle_timeout_s: float = setting(
        90.0,
        help="for which a connection may be silent between requests, within a body 30 at most; longer than load"
        " balancers keep theirs (60 mostly), so that none sends a request on a connection that ends here",
        minimum=0.1,
    )
    drain_delay_s: float = setting(
        5.0,
        help="for which HTTP is served on after SIGTERM while `/ready` answers 503, so that a load balancer sends"
        " nothing more when the listener closes; at most half of `drain-timeout-s`",
        minimum=0,
        maximum=3600,
    )
    write_timeout_s: float = setting(
        30.0, help="after which a client is cut off that reads less than 1 KiB a second of its answer", minimum=0.1
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        help="names under which browsers and others may ask for this process (Host); empty: any where `http-listen`"
        " is reachable from elsewhere, this machine's own names where it is not; addresses are always served",
    )
    allowed_origins: tuple[str, ...] = setting(
        (), help="origins (https://…) whose pages may call the API; those of this process itself always may"
    )

    def __post_init__(self) -> None:
        check_http_address("--http-listen", self.http_listen)
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ValueError(f"--max-bodies-bytes must be at least --max-body-bytes, got {self.max_bodies_bytes}")


def aliases_of(given: tuple[str, ...]) -> dict[str, str]:
    """Return models by their further names. ValueError for what is no ALIAS=MODEL, or there twice."""
    aliases: dict[str, str] = {}
    for one in given:
        alias, separator, model = (part.strip() for part in one.partition("="))
        if not alias or not separator or alias in aliases:
            raise ValueError(f"--model-aliases must be ALIAS=MODEL, each alias once, got {one!r}")
        aliases[alias] = model
    return aliases


def drain_delay_of(http: HttpSettings, rpc: RpcServerSettings) -> float:
    """Return the seconds of the drain delay: it leaves running answers half of the drain's time at least."""
    return min(http.drain_delay_s, rpc.drain_timeout_s / 2)


@dataclass(frozen=True)
class EdgeSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    http: HttpSettings
    frontdoor_address: str = setting("127.0.0.1:50400", help="frontdoor that every request goes to")
    max_callers: int = setting(
        256, help="callers with connections to the frontdoor of their own; who was silent longest gives way", minimum=1
    )
    connections_per_caller: int = setting(
        8, help="connections of one caller to the frontdoor, each for 96 calls at once", minimum=1, maximum=64
    )
    controller_address: str = setting("", help="controller that the console asks about the fleet; empty for none")
    gateway_address: str = setting("", help="gateway that the console asks about the cache; empty for none")
    history_samples: int = setting(
        720, help="looks at the suite that are kept in memory for the console's charts; 0 for none", maximum=10_000
    )
    history_interval_s: float = setting(
        5.0, help="seconds between them; asked for with `service-token-file`", minimum=0.1, maximum=3600.0
    )
    model_aliases: tuple[str, ...] = setting(
        (),
        help="further names of models over HTTP, each as ALIAS=MODEL, such as gpt-image-1=tiny-heavy; `/v1/models`"
        " lists them; ALIAS= alone is the suite's choice",
    )
    public_url: str = setting(
        "", help="how clients reach this process, such as https://images.example; empty: as they asked for it"
    )
    files_url: str = setting(
        "",
        help="object store of the pictures that are served here by signed addresses, file:///… or s3://…; empty: none",
    )
    signing_key_file: Path | None = setting(
        None, help="the frontdoor's file of keys that such addresses are signed with"
    )

    def __post_init__(self) -> None:
        aliases_of(self.model_aliases)
        if self.files_url and self.signing_key_file is None:
            raise ValueError("--files-url needs --signing-key-file")
