"""Pin the bounds of servers and channels that operations and clients rely on."""

from pentimento.rpc import (
    access,
    call_limits,
    channel,
    errors,
    intake,
    pipeline,
    probe,
    process,
    server,
    watched_file,
)
from pentimento.rpc.settings import ServerBounds
from pentimento.rpc.transport import channel_options, server_options

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
KEEPALIVE = {
    "grpc.keepalive_time_ms": 1000,
    "grpc.keepalive_timeout_ms": 1500,
    "grpc.http2.ping_timeout_ms": 1500,
    "grpc.keepalive_permit_without_calls": 0,
    "grpc.http2.max_pings_without_data": 0,
}


def test_server_bounds_peers_and_detects_lost_ones() -> None:
    options = server_options(ServerBounds(max_message_bytes=7 * MEBIBYTE, max_connections=9), 3 * MEBIBYTE)

    assert dict(options) == KEEPALIVE | {
        "grpc.max_receive_message_length": 3 * MEBIBYTE,
        "grpc.max_send_message_length": 7 * MEBIBYTE,
        "grpc.http2.min_ping_interval_without_data_ms": 500,
        "grpc.so_reuseport": 0,
        "grpc.compression_enabled_algorithms_bitset": 1,
        "grpc.http2.lookahead_bytes": 16 * KIBIBYTE,
        "grpc.http2.bdp_probe": 0,
        "grpc.max_concurrent_streams": 1024,
        "grpc.http.overload_protection": 0,
        "grpc.server.max_pending_requests": 4096,
        "grpc.server.max_pending_requests_hard_limit": 4096,
        "grpc.server_max_unrequested_time_in_server": 3600,
        "grpc.max_allowed_incoming_connections": 9,
        "grpc.max_connection_idle_ms": 300_000,
        "grpc.server_handshake_timeout_ms": 10_000,
    }


def test_connection_limit_covers_all_addresses_of_socket() -> None:
    """Twice that number: replaced connections may not have ended yet."""
    options = dict(server_options(ServerBounds(max_connections=9), MEBIBYTE, 2))

    assert options["grpc.max_allowed_incoming_connections"] == 36


def test_channel_reconnects_within_seconds_without_proxy() -> None:
    assert dict(channel_options()) == KEEPALIVE | {
        "grpc.max_receive_message_length": 32 * MEBIBYTE,
        "grpc.max_send_message_length": 32 * MEBIBYTE,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 1000,
        "grpc.max_reconnect_backoff_ms": 2000,
        "grpc.enable_http_proxy": 0,
        "grpc.service_config_disable_resolution": 1,
    }


def test_times_sizes_and_codes_are_as_documented() -> None:
    assert ServerBounds() == ServerBounds(32 * MEBIBYTE, 128 * MEBIBYTE, 5.0, 1024, 60.0)
    assert channel.DEFAULT_DEADLINE_S == 10.0
    assert (access.DEFAULT_REQUEST_BYTES, intake.MEBIBYTE) == (64 * KIBIBYTE, MEBIBYTE)
    assert (intake.QUICK_S, intake.SECONDS_PER_MEBIBYTE) == (0.25, 1.0)
    assert (pipeline.OPEN_CALLS, pipeline.OPEN_CALLS_OF_A_PEER) == (256, 64)
    assert (pipeline.LAST_ANSWER_S, server.STREAM_GRACE_S, server.FLUSH_S) == (3.0, 0.5, 3.0)
    assert (server.SWITCH_INTERVAL_S, probe.DEADLINE_S, watched_file.CHECK_INTERVAL_S) == (0.0005, 3.0, 1.0)
    assert (server.QUIET_S, server.REFUSE_S) == (0.005, 1.0)
    assert (call_limits.BURST_CALLS, call_limits.WAITING_CALLS) == (32, 4096)
    assert watched_file.MIN_KEY_CHARS == 32
    assert errors.RETRY_AFTER_MS == 250
    assert (process.EXIT_BROKEN, process.EXIT_SETTINGS, process.EXIT_INTERRUPTED) == (1, 2, 130)
