"""Tasks give prompts, their verifier and demonstrations for the base model. They need neither torch, Ray nor vLLM."""
