"""Reinforce-Ada in NeMo-RL's synchronous trainer with a data plane (`data_plane.enabled`, grpo_sync.py)."""
