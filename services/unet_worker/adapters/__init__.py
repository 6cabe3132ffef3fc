"""Hold the LoRAs and IP-Adapters that the worker generates with, and load them. What reads their files is imported with
the first model that has some."""

from typing import TYPE_CHECKING

from pentimento.lazy_names import imported_when_used

if TYPE_CHECKING:
    from services.unet_worker.adapters.ip_adapters import open_ip_adapters
    from services.unet_worker.adapters.lora_directory import bounds_followed, open_lora_directory
    from services.unet_worker.adapters.uploaded_loras import UploadedLoras

__all__ = ["UploadedLoras", "bounds_followed", "open_ip_adapters", "open_lora_directory"]

__getattr__ = imported_when_used(
    __name__,
    {
        "ip_adapters": "open_ip_adapters",
        "lora_directory": "bounds_followed open_lora_directory",
        "uploaded_loras": "UploadedLoras",
    },
)
