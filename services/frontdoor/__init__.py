"""The public edge and the dataplane's live interpreter: requests in, pictures out."""
