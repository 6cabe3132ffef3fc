"""Options of the HTTP/2 connections, on both sides, in one place because they must agree.

A side with open calls that hears nothing for KEEPALIVE_TIME_MS pings, and gives the peer up KEEPALIVE_TIMEOUT_MS
later: a stopped or unplugged peer is noticed within 2.5 s. Servers accept pings every MIN_PING_INTERVAL_MS, so that a
client of ours is never told `too_many_pings`; faster pinging is answered with a GOAWAY as in any gRPC server.
"""

Options = tuple[tuple[str, int | str], ...]

KEEPALIVE_TIME_MS = 1000
KEEPALIVE_TIMEOUT_MS = 1500
MIN_PING_INTERVAL_MS = 500
MAX_CONCURRENT_STREAMS = 1024

KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without this one grpcio 1.85 gives an unanswered ping a minute, whatever the keepalive timeout says.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


def server_options(max_message_bytes: int) -> Options:
    return (
        *KEEPALIVE,
        *message_limits(max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        # Without this a second process binds the same port and takes half of the calls.
        ("grpc.so_reuseport", 0),
    )


def channel_options(max_message_bytes: int) -> Options:
    return (
        *KEEPALIVE,
        *message_limits(max_message_bytes),
        # A peer that comes back is found again within a second or two, not after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Calls inside the suite never go through the HTTP proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
    )


def message_limits(max_message_bytes: int) -> Options:
    return (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
    )
