"""Reinforce-Ada (arXiv 2510.04996) as a production training recipe on NVIDIA NeMo-RL, and the same stack on a CPU."""

__version__ = "0.1.0"
