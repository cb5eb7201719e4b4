"""Reinforce-Ada (arXiv 2510.04996) as a production training recipe on NVIDIA NeMo-RL, and the same stack on a CPU."""

from __future__ import annotations

__version__ = "0.1.0"
