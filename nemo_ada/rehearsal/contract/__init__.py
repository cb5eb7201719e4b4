"""`nemo-ada contract`: what changed between two checkouts of NeMo-RL in the names that a program touches.

Both checkouts are read as source. Nothing of them is imported, so any interpreter will do.

Modules:
    source: definitions, parameters, returned values, fields and strings of a checkout.
    uses: the names that nemo_ada touches, found in its own source, or listed in a file of another program.
    compare: the differences of two checkouts.
    command: the command itself.
"""
