"""Files: TOML and lines, read with errors that name file, line and field; private ones, closed to others."""
