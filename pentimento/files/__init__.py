"""Read TOML, lines and dataclasses as JSON, with errors that name file, line and field; keep private files closed to
others."""
