"""The vLLM engine of the CPU back end, and the source that draws responses from it."""
