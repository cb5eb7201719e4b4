"""`nemo-ada plan`: how long a step takes, how many fit into a job slot, which caps bound it, what each preset costs.

`job` reads the config, `assumptions` gives pass rates and lengths, `sampling` simulates the sampling phase with the
session that trains, `roofline` gives seconds where no run was measured, `history` reads an earlier run, `forecast`
turns these into step times, `slots` into job slots, `caps` chooses caps; `command` puts them together, `render` prints.
"""
