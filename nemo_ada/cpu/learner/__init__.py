"""The learner of the embedded back end: Megatron-core on CPU processes."""
