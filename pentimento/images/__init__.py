"""Validate encoded images from strangers before decoding them.

| module | contents |
| --- | --- |
| `header` | format and size of an image, within the limits of every service; standard library only |
| `png`, `jpeg`, `webp` | the containers: structure, size, the parts that a decoder needs; PNG is also written |
| `container` | the error of all readers, and the orientation; standard library only |
| `decoding` | pixels, through Pillow; one image of a process at a time |
"""

from pentimento.images.header import MAX_ASPECT_RATIO, MAX_PIXELS, ImageHeader, check_whole, read_header

__all__ = ["MAX_ASPECT_RATIO", "MAX_PIXELS", "ImageHeader", "check_whole", "read_header"]
