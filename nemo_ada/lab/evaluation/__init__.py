"""Evaluation: avg@k and pass@k of a model on benchmarks, with intervals, and paired comparisons of checkpoints."""
