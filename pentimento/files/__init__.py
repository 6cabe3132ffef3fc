"""Files: TOML, lines and dataclasses as JSON, read with errors that name file, line and field; private files, closed to
others."""
