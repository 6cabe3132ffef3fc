"""Define the one error of this package."""


class SettingsError(Exception):
    """Report that a setting is unknown, malformed or outside its limits. The message is one line naming it and its
    source."""
