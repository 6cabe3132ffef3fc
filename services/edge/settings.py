"""Settings of the HTTP edge: flags, PENTIMENTO_EDGE_… and the table [edge]."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.policies.cells import CellMap, read_cells
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.settings import MEBIBYTE, check_http_address
from pentimento.settings import setting

# Bodies of the largest size that are in memory at one time.
LARGEST_BODIES_COUNT = 16
# Replaced by a request's id in `trace_url`.
REQUEST = "{request_id}"


@dataclass(frozen=True)
class HttpSettings:
    """Limits of the HTTP listener, for known and unknown clients."""

    http_listen: str = setting(
        "127.0.0.1:50480", help="host:port of the HTTP API; port 0: any free port; TLS as for `listen`"
    )
    max_body_bytes: int = setting(
        16 * MEBIBYTE,
        help="body of a request, beyond: 413, unread; 16 such bodies in memory, beyond: 503",
        minimum=1024,
    )
    idle_timeout_s: float = setting(
        90.0,
        help="idle time of a connection (at most 30 within a body), above the load balancer's",
        minimum=0.1,
    )
    drain_delay_s: float = setting(
        5.0,
        help="service after SIGTERM while `/ready` answers 503; at most half of `drain-timeout-s`",
        minimum=0,
        maximum=3600,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        help="accepted host names; empty: any if reachable from outside, else this machine's",
    )
    allowed_origins: tuple[str, ...] = setting(
        (), help="origins (https://…) of pages that may call the API, besides this process's own"
    )

    def __post_init__(self) -> None:
        check_http_address("--http-listen", self.http_listen)


def aliases_of(given: tuple[str, ...]) -> dict[str, str]:
    """Return models by alias. ValueError for an item that is not ALIAS=MODEL, or an alias that occurs twice."""
    aliases: dict[str, str] = {}
    for one in given:
        alias, separator, model = (part.strip() for part in one.partition("="))
        if not alias or not separator or alias in aliases:
            raise ValueError(f"--model-aliases must be ALIAS=MODEL, each alias once, got {one!r}")
        aliases[alias] = model
    return aliases


def drain_delay_of(http: HttpSettings, rpc: RpcServerSettings) -> float:
    """Return the drain delay in seconds, at most half of the drain timeout: the rest is for running answers."""
    return min(http.drain_delay_s, rpc.drain_timeout_s / 2)


@dataclass(frozen=True)
class EdgeSettings:
    rpc: RpcServerSettings
    channels: RpcChannelSettings
    http: HttpSettings
    frontdoor_address: str = setting("127.0.0.1:50400", help="frontdoor for all requests")
    cells: tuple[str, ...] = setting(
        (), help="all cells, NAME=ADDRESS, a frontdoor under its frontdoor-id; empty: the suite has one frontdoor"
    )
    cell_lists: tuple[str, ...] = setting(
        (),
        help="cells of tenants, NAME+NAME…: the list of new requests, then earlier ones until their requests' "
        "retention has ended; empty: all cells",
    )
    controller_address: str = setting("", help="controller, and its standbys; empty: none")
    gateway_address: str = setting("", help="vectordb gateway; empty: no cache, and no page of it in the console")
    model_aliases: tuple[str, ...] = setting(
        (),
        help="further model names, ALIAS=MODEL; ALIAS= is the suite's choice",
    )
    public_url: str = setting("", help="public address, such as https://images.example; empty: as the client called it")
    files_url: tuple[str, ...] = setting(
        (),
        help="each cell's object store of images with signed addresses, file:///… or s3://…; empty: none",
    )
    signing_key_file: Path | None = setting(
        None, help="file of signing keys for addresses and webhooks, 64 hexadecimal digits a line"
    )
    trace_url: str = setting("", help="page of your trace viewer for the console, with {request_id}; empty: none")

    def __post_init__(self) -> None:
        aliases_of(self.model_aliases)
        self.read_cells()
        if self.files_url and self.signing_key_file is None:
            raise ValueError("--files-url needs --signing-key-file")
        if self.trace_url and not (self.trace_url.startswith(("http://", "https://")) and REQUEST in self.trace_url):
            raise ValueError(f"--trace-url must be http://… or https://… with {REQUEST} in it, got {self.trace_url!r}")

    def read_cells(self) -> CellMap:
        """Return the cells. Raises ValueError."""
        return read_cells(self.cells, self.cell_lists)

    @property
    def frontdoors(self) -> dict[str, str]:
        """Return the addresses of the frontdoors by cell; a suite without cells has one, named ""."""
        return dict(self.read_cells().addresses) or {"": self.frontdoor_address}
