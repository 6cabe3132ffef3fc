"""Settings of cells that a frontdoor and an edge reject."""

import pytest

from pentimento.settings import SettingsError, load_settings
from services.edge.settings import EdgeSettings
from services.frontdoor.settings import FrontdoorSettings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "a=x:1,b=y:1"], "--cells must have --frontdoor-id, got none named 'frontdoor'"),
        (["--cells", "a=x:1,a=y:1", "--frontdoor-id", "a"], "--cells must name each cell once, got a twice"),
        (["--cells", "a=x:1", "--frontdoor-id", "a", "--cell-lists", "a+z"], "--cell-lists must name cells of --cells"),
        (["--cell-lists", "a"], "--cell-lists needs --cells"),
    ],
)
def test_frontdoor_settings_of_wrong_cells_are_rejected_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(FrontdoorSettings, "frontdoor", arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "a"], "--cells must be NAME=ADDRESS"),
        (["--cells", "a=x:1", "--cell-lists", "b"], "--cell-lists must name cells of --cells, got 'b'"),
        (["--cell-lists", "a"], "--cell-lists needs --cells"),
    ],
)
def test_edge_settings_of_wrong_cells_are_rejected_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(EdgeSettings, "edge", arguments)
    assert message in str(caught.value)
