"""Say from rollouts that a user already has what adaptive sampling would have changed (`nemo-ada whatif`)."""
