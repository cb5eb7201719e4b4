"""The back end for a machine without a GPU: vLLM's CPU build generates, Megatron-core learns, Ray actors hold both."""
