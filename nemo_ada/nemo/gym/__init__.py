"""Reinforce-Ada over NeMo-Gym: agents and tools run on Gym's servers, which ask NeMo-RL's engine over HTTP.

A response is one call of NeMo-RL's own rollout function with one row (`source.py`). So a failed rollout costs one
response, and none waits for another. The prompt has no tokens before its rollout. Its request stands for it
(`request.py`).
"""
