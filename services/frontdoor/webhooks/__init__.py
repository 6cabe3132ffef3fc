"""Report ended jobs by webhook: the allowed addresses, the signature, the calls and the retries."""
