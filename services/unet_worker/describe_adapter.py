"""Describe the directory of a LoRA, a ControlNet or a depth model for a registry, as JSON:
`python -m services.unet_worker.describe_adapter --adapter DIR`."""

from pentimento.diffusion.checkpoint import digest_files
from pentimento.diffusion.controlnets import open_controlnet
from pentimento.diffusion.controlnets.depth import depth_model_digest
from pentimento.diffusion.loras import digest_lora, lora_file_in
from pentimento.domain.errors import InvalidArgument
from pentimento.files.adapter_registry import DEPTH_MODEL
from pentimento.files.lora_headers import judge_lora
from pentimento.rpc import print_found
from services.unet_worker.settings import DescribeAdapterSettings


def described(settings: DescribeAdapterSettings) -> dict[str, str]:
    """Return the kind and the digest, and the family of a ControlNet. Raises BadCheckpoint, BadLora and InvalidArgument
    for any other directory."""
    directory = settings.adapter
    if (directory / "config.json").is_file():
        if (digest := depth_model_digest(directory)) is not None:
            return {"kind": DEPTH_MODEL, "digest": digest, "family": ""}
        found = open_controlnet(directory)
        return {"kind": "controlnet", "digest": digest_files(directory, found.files), "family": found.family}
    file = lora_file_in(directory)
    if file is None:
        limit = f"must be a directory with a LoRA, a ControlNet or a depth model, {directory} has none"
        raise InvalidArgument.of("adapter", limit)
    judge_lora(file.read_bytes(), file.name)
    return {"kind": "lora", "digest": digest_lora(file), "family": ""}


if __name__ == "__main__":
    print_found("describe_adapter", DescribeAdapterSettings, described)
