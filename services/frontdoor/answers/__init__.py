"""What clients are told: progress, pictures, errors."""
