"""`/v1/images/…`: pictures as OpenAI's clients ask for them."""

from services.edge.images.routes import image_routes

__all__ = ["image_routes"]
