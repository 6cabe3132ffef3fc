"""Test paces: read whole, or rejected by file, line, field and limit, with dims as a UNet's ControlNet has them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import ControlNetModel

from lab.emulation.pace import PassTimes, read_pace, slowed, write_pace
from lab.fixtures.checkpoints import write_controlnet
from pentimento.domain.errors import InvalidArgument
from tests.support.refusals import wrong_refusals

SDXL = Path(__file__).parents[3] / "scenarios" / "paces" / "sdxl-h800.toml"


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = SDXL.read_text()
    assert old in text
    (tmp_path / "pace.toml").write_text(text.replace(old, new))
    return tmp_path / "pace.toml"


def test_sdxl_residuals_have_the_bytes_katz_measured() -> None:
    pace = read_pace(SDXL)

    down, mid = pace.residual_dims(1, *pace.latent_dims(pace.width_px, pace.height_px)[1:])

    elements = sum(torch.Size(dims).numel() for dims in (*down, mid))
    assert elements * 2 / 1e6 == pytest.approx(53.7, abs=0.05)
    assert (len(down), down[-1], mid) == (9, (1, 1280, 32, 32), (1, 1280, 32, 32))


def test_an_ideal_speed_up_is_katzs() -> None:
    pace = read_pace(SDXL)
    control, encode, decode = (times.of(1) for times in (pace.controlnets[0].step, pace.encode, pace.decode))

    assert (control + encode + decode) / (max(control, encode) + decode) == pytest.approx(1.45, abs=0.005)


def test_residuals_have_the_dims_of_a_real_controlnets(tmp_path: Path) -> None:
    network = ControlNetModel.from_pretrained(write_controlnet(tmp_path / "net"))
    config = network.config
    pace = replace(
        read_pace(SDXL), block_channels=tuple(config.block_out_channels), layers_per_block=config.layers_per_block
    )
    side, told = 6, 6 * scale_of(network)

    down, mid = network(
        torch.zeros(2, config.in_channels, side, side),
        torch.tensor(1.0),
        torch.zeros(2, 3, config.cross_attention_dim),
        torch.zeros(2, 3, told, told),
        return_dict=False,
    )

    assert pace.residual_dims(2, side, side) == (tuple(tuple(one.shape) for one in down), tuple(mid.shape))


def scale_of(network: torch.nn.Module) -> int:
    """Pixels of a condition for each of a latent."""
    strides = [module.stride[0] for module in network.controlnet_cond_embedding.modules() if hasattr(module, "stride")]
    return int(torch.tensor(strides).prod())


def test_pass_beyond_profiled_rows_takes_in_proportion() -> None:
    times = PassTimes((1.0, 1.5))

    assert [times.of(rows) for rows in (1, 2, 4)] == [1.0, 1.5, 3.0]


WRONG = [
    ('family = "stable_diffusion_xl"', 'family = "flux"', "family"),
    ("block_channels = [320, 640, 1280]", "block_channels = [0]", "block_channels"),
    ("{ 1 = 13.6, 2 = 27.2 }\ndecode", "{ 0 = 13.6 }\ndecode", "encode_ms"),
    ("decode_ms = { 1 = 16.6, 2 = 33.2 }\n", "", "decode_ms"),
    ('name = "depth"', 'name = "canny"', "controlnets"),
    ("picture_ms = 100.0", "picture_ms = nan", "picture_ms"),
    ("steps = 50", "stepss = 50", "steps"),
]


def test_wrong_field_is_named(tmp_path: Path) -> None:
    assert wrong_refusals(InvalidArgument, lambda old, new: read_pace(changed(tmp_path, old, new)), WRONG) == []


def test_loras_are_read_with_their_costs() -> None:
    pace = read_pace(SDXL)

    assert [lora.name for lora in pace.loras] == ["papercut", "pixel", "sketch", "oil"]
    assert (pace.patch_s, pace.loras[0].load_s, pace.loras[0].latest_start_fraction) == (0.12, 0.3, 0.2)


def test_two_loras_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="loras"):
        read_pace(changed(tmp_path, 'name = "pixel"', 'name = "oil"'))


def test_written_pace_is_read_again(tmp_path: Path) -> None:
    pace = replace(read_pace(SDXL), beside_share=0.2, layers_per_block=1, text_tokens=12)

    write_pace(tmp_path / "pace.toml", pace)

    assert read_pace(tmp_path / "pace.toml") == pace


def test_slowed_device_takes_longer_for_everything() -> None:
    pace = slowed(read_pace(SDXL), 2.0)

    passes = (pace.encode, pace.decode, pace.controlnets[2].step)
    assert [times.seconds for times in passes] == [(0.0272, 0.0544), (0.0332, 0.0664), (0.0272, 0.0544)]
    assert (pace.picture_s, pace.patch_s, pace.loras[3].load_s, pace.controlnets[0].load_s) == (0.2, 0.24, 0.6, 3.0)
