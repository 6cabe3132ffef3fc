"""Jobs and lists of requests of pentimento.api.image.v1 beside pentimento.domain.jobs."""

from dataclasses import asdict

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestSummary, ResultUrl, WebhookDelivery
from pentimento.wire.carried import carried
from pentimento.wire.enumerations import REQUEST_STATES, WEBHOOK_STATES


def summary_to_proto(summary: RequestSummary) -> pb.RequestSummary:
    return pb.RequestSummary(**{**asdict(summary), "state": REQUEST_STATES.to_proto(summary.state)})


def summary_from_proto(message: pb.RequestSummary) -> RequestSummary:
    fields = {name: getattr(message, name) for name in RequestSummary.__dataclass_fields__}
    return RequestSummary(
        **{
            **fields,
            "state": REQUEST_STATES.from_proto(message.state),
            "finished_at_ms": message.finished_at_ms if message.HasField("finished_at_ms") else None,
            "kept_until_ms": message.kept_until_ms if message.HasField("kept_until_ms") else None,
        }
    )


def query_to_proto(query: RequestQuery) -> pb.ListRequestsRequest:
    """Return what is asked for. InvalidArgument names a value that no message carries."""
    return carried(
        pb.ListRequestsRequest,
        states=sorted(REQUEST_STATES.to_proto(state) for state in query.states),
        jobs_only=query.jobs_only,
        page_size=query.page_size,
        page_token=query.page_token,
    )


def query_from_proto(message: pb.ListRequestsRequest) -> RequestQuery:
    """Raises InvalidArgument for a state that does not exist."""
    states = frozenset(REQUEST_STATES.from_proto(state) for state in message.states)
    return RequestQuery(states, message.jobs_only, message.page_size, message.page_token)


def page_to_proto(page: RequestPage) -> pb.ListRequestsResponse:
    requests = [summary_to_proto(summary) for summary in page.requests]
    return pb.ListRequestsResponse(requests=requests, next_page_token=page.next_page_token)


def page_from_proto(message: pb.ListRequestsResponse) -> RequestPage:
    return RequestPage(tuple(summary_from_proto(summary) for summary in message.requests), message.next_page_token)


def result_url_to_proto(result: ResultUrl) -> pb.GetResultUrlResponse:
    return pb.GetResultUrlResponse(url=result.url, expires_at_ms=result.expires_at_ms)


def result_url_from_proto(message: pb.GetResultUrlResponse) -> ResultUrl:
    return ResultUrl(message.url, message.expires_at_ms)


def delivery_to_proto(delivery: WebhookDelivery) -> pb.WebhookDelivery:
    return pb.WebhookDelivery(
        state=WEBHOOK_STATES.to_proto(delivery.state), try_count=delivery.try_count, error=delivery.error
    )


def delivery_from_proto(message: pb.WebhookDelivery) -> WebhookDelivery:
    return WebhookDelivery(WEBHOOK_STATES.from_proto(message.state), message.try_count, message.error)
