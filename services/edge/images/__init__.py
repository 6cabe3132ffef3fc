"""`/v1/images/…`: images in the format of OpenAI's clients."""

from services.edge.images.routes import image_routes

__all__ = ["image_routes"]
