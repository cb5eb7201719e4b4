"""How long tests wait for processes. No promise depends on it: a busy machine takes minutes to start a process."""

PATIENCE = 900.0  # seconds; pytest ends a test after 1200
