"""The learner of the CPU back end: Megatron-core on CPU processes."""
