"""Whether this environment has what the HTTP edge is made of: the extra `edge`, which `dev` brings along."""

import importlib.util

PACKAGES = ("starlette", "uvicorn", "httptools", "python_multipart", "openai")


def missing() -> list[str]:
    """Return what is not installed."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is None]
