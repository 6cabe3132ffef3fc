"""Reserve room to receive the messages of halves' streams."""

from dataclasses import replace

from pentimento.api.auth.v1 import auth_pb2 as auth_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.rpc.settings import with_receiving_room
from services.unet_worker.settings import UnetWorkerSettings

# For a message of PredictHalf: the contract's max_request_bytes.
_STREAM = pb.DESCRIPTOR.services_by_name["UnetWorkerService"].methods_by_name["PredictHalf"]
MAX_REQUEST_BYTES = _STREAM.GetOptions().Extensions[auth_pb.max_request_bytes]


def with_room_for_halves(settings: UnetWorkerSettings) -> UnetWorkerSettings:
    """Return the settings with room for one half per credit: each may be receiving a message of the largest size at the
    same time. If callers are authenticated, a worker's streams are not counted."""
    if settings.rpc.token_file is not None:
        return settings
    count = settings.credits or settings.max_batch
    return replace(settings, rpc=with_receiving_room(settings.rpc, count, MAX_REQUEST_BYTES))
