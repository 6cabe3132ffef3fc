"""Encoded pictures of strangers, judged before anything is decoded.

| module | what it does |
| --- | --- |
| `header` | format and size of a picture, within the limits that hold in every service; standard library only |
| `png`, `jpeg`, `webp` | the containers: structure, size, and what of them a decoder needs |
| `exif` | which way is up; standard library only |
| `decoding` | pixels, through Pillow; of one picture of a process at a time |
| `png_chunks` | chunks of PNG files, written, and read without decoding them |
| `png_text` | text inside PNG files, read and written without decoding them |
"""

from pentimento.pictures.header import MAX_ASPECT_RATIO, MAX_PIXELS, PictureHeader, check_whole, read_header

__all__ = ["MAX_ASPECT_RATIO", "MAX_PIXELS", "PictureHeader", "check_whole", "read_header"]
