"""Measure a model and write its profile: `python -m services.unet_worker.profiling KIND --model DIR`."""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.profiling.command import kind_of, run
from services.unet_worker.profiling.settings import ProfileSettings


async def main(argv: list[str]) -> None:
    """Measure the kind that the first argument names, by the flags after it."""
    kind, flags = kind_of(argv)
    await run(kind, load_settings(ProfileSettings, "profile", flags))


if __name__ == "__main__":
    configure_logging("profile", "")
    # The file is the requested result.
    run_service(main, private=False)
