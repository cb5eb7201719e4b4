"""`nemo-ada check` finds what is wrong with a configuration before a GPU hour is spent.

The rules for a config are in nemo_ada/rules. This room adds what depends on the machine: GPUs and their memory, free
disk, caches, folders, the verifier. A check is a small function from facts to findings, and `command` runs them all.
"""
