"""Accept requests at the public edge, run the dataplane live, and return images."""
