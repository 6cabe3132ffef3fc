"""The one error of this package."""


class SettingsError(Exception):
    """A setting is unknown, malformed or outside its limits. The message is one line naming it and its source."""
