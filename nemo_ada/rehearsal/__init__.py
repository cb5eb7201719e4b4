"""Rehearsal: a cluster config runs on this machine's CPU with NeMo-RL's own workers.

The user's config goes through NeMo-RL's set-up, policy workers, vLLM workers, refit, loop and checkpoints. Only sizes
shrink (`shrink`). What needs a GPU is replaced (`standins`, one file per library, each with its reasons).

Three kinds of processes take part. The command (`command`) shrinks the config and compares the runs. The driver
(`driver`) runs in the policy interpreter and calls our launcher. Ray starts each worker in the interpreter of its
class. Every interpreter loads the stand-ins through `startup/sitecustomize.py`, which is first on PYTHONPATH.

The rehearsal stands apart from the rest of the package (tests/test_layers.py holds both rules):

- Only `nemo_ada/cli/rehearse.py` imports it, inside the command.
- `command` imports the check and the reader of cluster configs, and `tables` the plan. The test says what each file
  imports beyond `errors`, `run` and this folder. `driver` loads `nemo_ada.nemo.launch.command` by its name.

`gpu` spends the first hour on GPUs: `runs` makes the configs, `gpu` runs one slice after the other, and `tables` says
what `plan` expects, and compares.
"""
