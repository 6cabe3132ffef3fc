"""Find missing packages of the HTTP edge: the extra `edge`, which `dev` includes."""

import importlib.util

PACKAGES = ("starlette", "uvicorn", "httptools", "python_multipart", "pydantic", "openai")


def missing() -> list[str]:
    """Return the packages that are not installed."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is None]
