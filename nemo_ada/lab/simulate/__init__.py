"""Simulate sampling plans without a model, to compare their cost and yield before GPU hours are spent."""
