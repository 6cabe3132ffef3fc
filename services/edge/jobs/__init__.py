"""`/v1/jobs`: requests that continue without their clients, over HTTP."""

from services.edge.jobs.routes import job_routes

__all__ = ["job_routes"]
