"""The back end for a machine without a GPU: vLLM's CPU build generates, Megatron-core learns, Ray actors hold both."""

from nemo_ada.run.torch_parts import hide_cuda_parts

hide_cuda_parts()
