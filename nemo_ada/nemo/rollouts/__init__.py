"""From a request for responses to finished responses, through NeMo-RL's own rollout functions."""
