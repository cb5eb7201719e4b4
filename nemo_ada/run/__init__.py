"""What a run writes into its folder, and its messages to the batch script."""
