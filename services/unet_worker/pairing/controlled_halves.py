"""Validate the ControlNets of another worker's half before anything is opened for them."""

from collections.abc import Sequence

from pentimento.domain.adapters import ADAPTER_NAME_RULE, is_adapter_name, is_digest
from pentimento.domain.errors import InvalidArgument
from pentimento.pictures import read_header
from services.unet_worker.control.remote_control import RemoteControlNet

MAX_CONTROLNETS = 16
MAX_REPLICAS = 256
MAX_ADDRESS_LENGTH = 1024
_SHOWN_LENGTH = 80


def controlnet_field(place: int) -> str:
    """Return the field of the ControlNet at that place in an opening."""
    return f"open.controlnets[{place}]"


def check_controlnet_count(count: int) -> None:
    """Raise InvalidArgument for more ControlNets than a half may have."""
    if count > MAX_CONTROLNETS:
        raise InvalidArgument.of("open.controlnets", f"must be at most {MAX_CONTROLNETS}, got {count}")


def check_controlnets(controlnets: Sequence[RemoteControlNet], size_px: tuple[int, int]) -> None:
    """Raise InvalidArgument, by the contract's field, for a ControlNet that is invalid for a half of an image of
    (width, height)."""
    for place, controlnet in enumerate(controlnets):
        _check_controlnet(controlnet, controlnet_field(place), size_px)


def _check_controlnet(controlnet: RemoteControlNet, where: str, size_px: tuple[int, int]) -> None:
    selection = controlnet.selection
    if not is_adapter_name(selection.name):
        raise InvalidArgument.of(f"{where}.controlnet.name", f"{ADAPTER_NAME_RULE}, got {_shown(selection.name)}")
    if not is_digest(selection.digest):
        limit = "must be sha256: and 64 hexadecimal digits"
        raise InvalidArgument.of(f"{where}.controlnet.digest", f"{limit}, got {_shown(selection.digest)}")
    controlnet.setting.check(f"{where}.controlnet")
    if not 1 <= len(controlnet.addresses) <= MAX_REPLICAS:
        raise InvalidArgument.of(f"{where}.addresses", f"must be 1 to {MAX_REPLICAS}, got {len(controlnet.addresses)}")
    if not all(1 <= len(address) <= MAX_ADDRESS_LENGTH for address in controlnet.addresses):
        raise InvalidArgument.of(f"{where}.addresses", f"must have 1 to {MAX_ADDRESS_LENGTH} characters each")
    if controlnet.encoded is None:
        _check_image(selection.conditioning_image, f"{where}.controlnet.conditioning_image", size_px)


def _check_image(image: bytes, field: str, size_px: tuple[int, int]) -> None:
    header = read_header(image, field)
    if (header.width_px, header.height_px) != size_px:
        wanted = f"must be of the image's size, {size_px[0]} x {size_px[1]} pixels"
        raise InvalidArgument.of(field, f"{wanted}, got {header.width_px} x {header.height_px}")


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_LENGTH])
