"""Load settings from flags, environment, TOML and defaults, in that order; an unknown or wrong one prevents the
start."""

from pentimento.settings.declaration import SettingsError, setting
from pentimento.settings.loading import load_settings

__all__ = ["SettingsError", "load_settings", "setting"]
