"""List the commands of the pages that no test runs, by their first words, with the reason. scripts/check_pages.py
parses every command; tests/e2e/test_snippets.py runs the others."""

NOT_RUN = {
    "make ": "sets up a venv, or runs what CI runs as stages of its own",
    "source .venv/bin/activate": "the tests run in that venv already",
    "docker ": "needs a container engine; tests/compose runs the compositions where there is one",
    "helm ": "needs a cluster; tests/unit/chart renders the chart",
    "kubectl ": "needs a cluster",
    "image=registry.example/": "needs a registry",
    "cosign ": "is not in any package here, and needs a registry",
    "python deploy/make_secrets.py": "writes into the checkout; tests/compose makes secrets in a folder of its own",
    "pentimento up": "the suite that the others talk to is up; folders of tests/e2e start more by such flags",
    "python -m services.": "serves until it is told to stop; tests/integration starts each service",
    "python -m lab.emulation.": "serves until it is told to stop; tests/lab/emulation starts each service",
    "python -m benchmarks.": "measures for minutes, on a machine that must be otherwise idle",
    "pentimento generate --prompts-file prompts.txt --model my-light ": "paints thousands, by a model of the reader's",
    "pentimento generate --prompts-file prompts.txt --model sdxl ": "generates thousands, by a model of the reader's",
    'pentimento generate "a red house" --controlnet ': "needs ControlNets and photographs of the reader's; "
    "tests/integration/controlnet_svc uses such",
    'pentimento generate "a cat, best quality" --image-prompt ': "needs an IP-Adapter of the reader's; "
    "tests/golden/unet_worker uses such",
    "pentimento zoo ": "trains, paints or measures for minutes; `make test-training` does so for a few steps",
    "pentimento simulate ": "takes a minute; tests/lab/simulator plays scenarios",
    "pentimento profile ": "measures a model of the reader's; tests/integration/unet_worker runs small ones",
    "pentimento discriminator train ": "needs pairs of the reader's suite; tests/unit/discriminator trains on some",
    "pentimento bench ": "measures for minutes, or reads what that wrote; tests/e2e/test_load.py runs small ones",
    "pentimento models add ": "needs a model of the reader's; tests/integration/controller registers some",
    "pentimento models add-cascade ": "needs files of the reader's; tests/integration/controller registers some",
    "pentimento adapters add ": "needs a LoRA of the reader's; tests/e2e/test_adapters.py uploads one",
    "pentimento adapters register ": "needs a directory of the reader's; tests/unit/cli registers one",
    "pentimento backup ": "copies stores of the reader's; tests/faults/drills does so",
    "pentimento restore ": "writes stores of the reader's; tests/faults/drills does so",
    "pentimento journal renew ": "mends a ledger that was lost; tests/faults/frontdoor does so",
    "grpcurl ": "is not installed by any package here; its method and message are checked against the contracts",
    "buf generate": "tests/e2e/strangers generates an example's stubs where Go is there",
    "go run ": "tests/e2e/strangers builds and runs the example where Go is there",
    "npm ci": "tests/e2e/strangers runs the examples, each in a folder of its own",
    "node generate.mjs ": "tests/e2e/strangers runs the examples, each in a folder of its own",
    "pip install ": "tests/e2e/strangers installs what an example needs",
    "python generate.py ": "tests/e2e/strangers runs the examples, each in a folder of its own",
    "python -m grpc_tools.protoc ": "tests/e2e/strangers generates stubs by that line",
}


def why_not_run(line: str) -> str | None:
    """Return why a line of a shell's block is not run by a test, None for one that is."""
    return next((reason for beginning, reason in NOT_RUN.items() if line.startswith(beginning)), None)
