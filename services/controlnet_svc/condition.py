"""A conditioning image, judged before it is decoded."""

from torch import Tensor

from pentimento.diffusion.images import decode_condition
from pentimento.domain.errors import InvalidArgument
from pentimento.pictures import read_header

FIELD = "controlnet.conditioning_image"


def condition_pixels(image: bytes, width_px: int, height_px: int) -> Tensor:
    """Return pixels (1, 3, height, width) in 0..1, as diffusers' pipelines make them. Blocks while others decode.

    Raises InvalidArgument for an image that is none, is damaged, or is not of the picture's size; nothing is decoded of
    one whose header says another size.
    """
    header = read_header(image, FIELD)
    if (header.width_px, header.height_px) != (width_px, height_px):
        found = f"{header.width_px} x {header.height_px}"
        raise InvalidArgument.of(FIELD, f"must be of the picture's size, {width_px} x {height_px}, got {found}")
    return decode_condition(image, FIELD, width_px, height_px)
