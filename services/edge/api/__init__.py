"""OpenAI's images API and jobs: bodies, calls, answers, and the API document."""
