"""Which prompts a step takes, and what is known of their pass rates."""
