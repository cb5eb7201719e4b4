"""Rehearsal: run a cluster config on this machine's CPU with NeMo-RL's own workers.

The user's config goes through NeMo-RL's set-up, policy workers, vLLM workers, refit, loop and checkpoints. Only sizes
shrink (`shrink`), and what needs a GPU is replaced (`standins`, one file per library, each with its reasons).

Three processes take part. The command (`command`) shrinks the config and compares the runs. The driver (`driver`) runs
in the policy interpreter and calls our launcher. Ray starts the workers in the interpreter of their class; each loads
the stand-ins through `startup/sitecustomize.py`, which is first on PYTHONPATH.
"""
