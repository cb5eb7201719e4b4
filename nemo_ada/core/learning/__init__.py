"""From pools to training rows: selection, weights and advantages."""
