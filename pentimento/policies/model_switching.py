"""Decide how a worker changes from one model to another.

With room on the device for both, the next model is loaded there while the current one generates, and requests of both
run until the current one's have ended. Else it is read into host memory first, and placed once the device is free. Else
the current model leaves before the next one is read.
"""

from pentimento.domain.weights import SwitchWay


def way_to_switch(staged_bytes: int, placed_bytes: int, host_bytes: int, device_bytes: int) -> SwitchWay:
    """Return the way to load weights that take `staged_bytes` of the host and `placed_bytes` of the device, with
    `host_bytes` and `device_bytes` free."""
    if staged_bytes > host_bytes:
        return SwitchWay.UNLOAD_FIRST
    return SwitchWay.BESIDE if placed_bytes <= device_bytes else SwitchWay.STAGED
