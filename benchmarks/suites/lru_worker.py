"""Run a paced worker that evicts LoRAs by LRU: `python -m benchmarks.suites.lru_worker --model PACE.toml`."""

from lab.studies.component_rules import Lru
from pentimento.diffusion.lean_imports import import_networks_alone
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.unet_worker.settings import UnetWorkerSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(UnetWorkerSettings, "unet_worker", argv)
    import_networks_alone()
    from lab.emulation.paced_worker.wiring import wire

    await wire(settings, Lru).run()


if __name__ == "__main__":
    run_service(main)
