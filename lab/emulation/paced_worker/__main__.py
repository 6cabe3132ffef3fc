"""Run a paced worker: `python -m lab.emulation.paced_worker --model PACE.toml`."""

from pentimento.diffusion.lean_imports import import_networks_alone
from pentimento.rpc import run_service
from pentimento.rpc.memory import keep_freed_memory
from pentimento.settings import load_settings
from services.unet_worker.settings import UnetWorkerSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(UnetWorkerSettings, "unet_worker", argv)
    keep_freed_memory()
    import_networks_alone()
    from lab.emulation.paced_worker.wiring import wire

    await wire(settings).run()


if __name__ == "__main__":
    run_service(main)
