"""Encode requests for the journal. A body that this version understands only in part is rejected, since the request
would lack something that its caller set."""

from google.protobuf.message import DecodeError

from pentimento.api.frontdoor.v1 import journal_pb2 as pb
from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.domain.image_request import ResolvedRequest, StartImage
from pentimento.domain.reasons import Reason
from pentimento.wire.codec import decode, encode, from_bytes, to_bytes

# The format of a body. Format 0, a public request, is no longer read.
JOURNALLED_REQUEST = 1


def resolved_to_bytes(resolved: ResolvedRequest) -> bytes:
    """Return the body of a request."""
    return to_bytes(resolved, pb.JournalledRequest)


def resolved_from_bytes(data: bytes, body_format: int) -> ResolvedRequest:
    """Return the request of a body. Raises Internal UNREADABLE_REQUEST unless all of the body is understood."""
    if body_format != JOURNALLED_REQUEST:
        raise unreadable()
    try:
        message = pb.JournalledRequest.FromString(data)
        resolved = decode(message, ResolvedRequest)
    except (DecodeError, InvalidArgument) as error:
        raise unreadable() from error
    # A field unknown to this version is missing from the message that it encodes.
    if encode(resolved, pb.JournalledRequest) != message:
        raise unreadable()
    return resolved


def start_image_to_bytes(handed: StartImage) -> bytes:
    """Return the bytes of the image that an attempt started from."""
    return to_bytes(handed, pb.StartImage)


def start_image_from_bytes(data: bytes) -> StartImage:
    """Return the image that `start_image_to_bytes` encoded. Raises Internal UNREADABLE_REQUEST for other bytes."""
    try:
        return from_bytes(data, StartImage, pb.StartImage)
    except InvalidArgument as error:
        raise unreadable() from error


def unreadable() -> Internal:
    """Return the error of a request that another version accepted and this one does not understand."""
    message = "this version cannot read the journalled request; it did not run"
    return Internal(Reason.UNREADABLE_REQUEST, message)
