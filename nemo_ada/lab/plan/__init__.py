"""`nemo-ada plan`: how long a step takes, how many fit into a job slot, which caps bound it, what each preset costs.

`planned_run` reads the config. `assumptions` gives pass rates and lengths. `sampling` simulates the sampling phase with
the session that trains. `roofline` gives seconds where no run was measured, and `history` reads an earlier run.
`forecast` turns these into step times, `job_slots` into job slots, and `caps` chooses caps. `command` puts them
together, and `render` prints.
"""
