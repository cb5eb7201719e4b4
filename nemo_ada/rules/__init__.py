"""The rules for a config: what `check` prints and `train` refuses. `rulebook` applies them all."""
