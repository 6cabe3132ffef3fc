"""`python -m services.vectordb_gateway --index-url … --objects-url … --ledger-url …`"""

from pentimento.rpc import run_service
from pentimento.settings import load_settings
from services.vectordb_gateway.settings import GatewaySettings


async def main(argv: list[str]) -> None:
    settings = load_settings(GatewaySettings, "vectordb_gateway", argv)
    # Imported after the settings hold: a wrong flag is answered before any store is touched.
    from services.vectordb_gateway.wiring import wire

    await wire(settings).run()


if __name__ == "__main__":
    run_service(main)
