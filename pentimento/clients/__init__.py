"""Call every service with domain values; answers are domain values, and failures raise domain errors."""
