"""Many pictures as one: a grid of small ones, left to right and top to bottom."""

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from pentimento.sdk.picture import Picture

_CELL_PX = 256
_GAP_PX = 8
SHEET_FORMS = (".png", ".jpg", ".jpeg")


def save_contact_sheet(pictures: Sequence[Picture | None], path: Path, column_count: int = 0) -> None:
    """Write a PNG or JPEG, by its name, with a cell for each picture; the cell of one that is missing stays empty.
    `column_count` 0: as many as make it about square. Raises ValueError for no picture at all."""
    if not any(pictures):
        raise ValueError("a contact sheet of no pictures")
    columns = column_count or math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    sheet = Image.new("RGB", (_extent_px(columns), _extent_px(rows)), "white")
    for place, picture in enumerate(pictures):
        if picture is not None:
            row, column = divmod(place, columns)
            _paste(sheet, picture, _extent_px(column), _extent_px(row))
    sheet.save(path)


def _extent_px(cell_count: int) -> int:
    return _GAP_PX + cell_count * (_CELL_PX + _GAP_PX)


def _paste(sheet: Image.Image, picture: Picture, left_px: int, top_px: int) -> None:
    small = picture.to_pil().convert("RGB")
    small.thumbnail((_CELL_PX, _CELL_PX))
    sheet.paste(small, (left_px + (_CELL_PX - small.width) // 2, top_px + (_CELL_PX - small.height) // 2))
