"""`python -m services.edge --frontdoor-address 127.0.0.1:50400`"""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.edge.settings import EdgeSettings
from services.edge.wiring import wire


async def main(argv: list[str]) -> None:
    """Serve until a signal stops the process."""
    await wire(load_settings(EdgeSettings, "edge", argv)).run()


if __name__ == "__main__":
    run_service(main)
