"""Configurations: YAML files, overlays, overrides, presets and their strict checks."""
