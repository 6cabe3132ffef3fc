"""Run a paced ControlNet service: `python -m lab.emulation.paced_controlnets --controlnets PACE.toml`."""

from pentimento.diffusion.lean_imports import import_networks_alone
from pentimento.rpc import run_service
from pentimento.rpc.memory import keep_freed_memory
from pentimento.settings import load_settings
from services.controlnet_svc.settings import ControlNetSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(ControlNetSettings, "controlnet_svc", argv)
    keep_freed_memory()
    import_networks_alone()
    from lab.emulation.paced_controlnets.wiring import wire_paced

    await wire_paced(settings).run()


if __name__ == "__main__":
    run_service(main)
