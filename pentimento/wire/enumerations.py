"""Enumerations, as two-way tables. An unknown number of a newer peer is refused by name rather than guessed."""

from enum import Enum
from typing import Any, Generic, TypeVar

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.api.generation.v1 import generation_pb2 as generation_pb
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Capability, ReplicaKind
from pentimento.domain.generation import ControlNetMode, NoiseForm, Scheduler
from pentimento.domain.image_request import CacheMode, ImageFormat
from pentimento.domain.jobs import ResultUrlServer, WebhookState
from pentimento.domain.requests import RequestState

E = TypeVar("E", bound=Enum)


class EnumTable(Generic[E]):
    """One domain enumeration beside its protobuf numbers."""

    def __init__(self, field: str, numbers: dict[E, int]) -> None:
        self._field = field
        self._numbers = numbers
        self._values = {number: value for value, number in numbers.items()}

    def to_proto(self, value: E | None) -> Any:
        """Return the number, 0 for None; Any because protobuf's stubs give each enumeration a type of its own.
        InvalidArgument for what is no value of the enumeration, such as the text of one."""
        if not value:
            return 0
        kind = type(next(iter(self._numbers)))
        if not isinstance(value, kind):
            raise InvalidArgument.of(self._field, f"must be of {kind.__name__}, got {type(value).__name__}")
        return self._numbers[value]

    def from_proto(self, number: int) -> E:
        if number not in self._values:
            raise InvalidArgument.of(self._field, f"must be one of {sorted(self._values)}, got {number}")
        return self._values[number]


SCHEDULERS = EnumTable(
    "scheduler",
    {
        Scheduler.DDIM: generation_pb.SCHEDULER_DDIM,
        Scheduler.EULER: generation_pb.SCHEDULER_EULER,
        Scheduler.EULER_ANCESTRAL: generation_pb.SCHEDULER_EULER_ANCESTRAL,
        Scheduler.DPM_SOLVER_PP_2M: generation_pb.SCHEDULER_DPM_SOLVER_PP_2M,
        Scheduler.FLOW_MATCH_EULER: generation_pb.SCHEDULER_FLOW_MATCH_EULER,
    },
)
CONTROLNET_MODES = EnumTable(
    "controlnet_mode",
    {
        ControlNetMode.SYNCHRONOUS: generation_pb.CONTROL_NET_MODE_SYNCHRONOUS,
        ControlNetMode.PIPELINED: generation_pb.CONTROL_NET_MODE_PIPELINED,
    },
)
ADAPTER_KINDS = EnumTable(
    "adapter.kind",
    {
        AdapterKind.LORA: generation_pb.ADAPTER_KIND_LORA,
        AdapterKind.CONTROLNET: generation_pb.ADAPTER_KIND_CONTROLNET,
    },
)
NOISE_FORMS = EnumTable(
    "noise_form",
    {
        NoiseForm.VARIANCE_PRESERVING: generation_pb.NOISE_FORM_VARIANCE_PRESERVING,
        NoiseForm.FLOW_MATCHING: generation_pb.NOISE_FORM_FLOW_MATCHING,
    },
)
CAPABILITIES = EnumTable(
    "capabilities", {value: worker_pb.Capability.Value(f"CAPABILITY_{value.name}") for value in Capability}
)
REPLICA_KINDS = EnumTable(
    "kind", {value: controller_pb.ReplicaKind.Value(f"REPLICA_KIND_{value.name}") for value in ReplicaKind}
)

CACHE_MODES = EnumTable("cache", {value: image_pb.CacheMode.Value(f"CACHE_MODE_{value.name}") for value in CacheMode})
IMAGE_FORMATS = EnumTable(
    "format", {value: image_pb.ImageFormat.Value(f"IMAGE_FORMAT_{value.name}") for value in ImageFormat}
)
RESULT_URL_SERVERS = EnumTable(
    "result_url_server",
    {
        ResultUrlServer.NONE: image_pb.RESULT_URL_SERVER_NONE,
        ResultUrlServer.STORE: image_pb.RESULT_URL_SERVER_STORE,
        ResultUrlServer.EDGE: image_pb.RESULT_URL_SERVER_EDGE,
    },
)
WEBHOOK_STATES = EnumTable(
    "webhook.state",
    {
        WebhookState.PENDING: image_pb.WEBHOOK_STATE_PENDING,
        WebhookState.DELIVERED: image_pb.WEBHOOK_STATE_DELIVERED,
        WebhookState.FAILED: image_pb.WEBHOOK_STATE_FAILED,
    },
)
REQUEST_STATES = EnumTable(
    "state", {value: image_pb.RequestState.Value(f"REQUEST_STATE_{value.name}") for value in RequestState}
)


def capabilities_from_proto(numbers: list[int]) -> frozenset[Capability]:
    """Bits this build does not know are a newer peer's and are left out: nothing here could use them."""
    known = {CAPABILITIES.to_proto(value): value for value in Capability}
    return frozenset(known[number] for number in numbers if number in known)
