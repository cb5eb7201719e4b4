"""Drawing responses for the prompts of a step within a budget."""
