"""Test support for the NeMo-RL back end: the real training loop on a CPU, with a tiny model behind its interfaces."""
