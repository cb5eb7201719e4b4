"""What a NeMo-RL config means: its values, the shape of its model, memory per GPU, the site, and files of the hub."""
