"""Reinforce-Ada in the single controller of NeMo-RL main: waves per group, rows, advantages, checkpoints.

`setup_single_controller` builds all objects in the driver, and `SingleControllerActor` runs them. Our subclass of the
actor replaces some of the objects by subclasses of theirs when it starts (actor.py). No name of NeMo-RL is patched.
"""
