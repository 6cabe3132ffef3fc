"""Report on a process: structured logs and metrics. Never a prompt, a token, a user or a tenant."""

from pentimento.telemetry.logs import LogFormat, LogLevel, configure_logging
from pentimento.telemetry.metrics import MetricsServer, counter, gauge, histogram, start_metrics_server
from pentimento.telemetry.tracing import current_request_id

__all__ = [
    "LogFormat",
    "LogLevel",
    "MetricsServer",
    "configure_logging",
    "counter",
    "current_request_id",
    "gauge",
    "histogram",
    "start_metrics_server",
]
