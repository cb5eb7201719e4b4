"""`nemo-ada plan`: how long a step takes, how many fit into a job slot, which caps bound it, which preset pays.

`history` reads an earlier run, `published` holds published step times, `model` simulates the sampling phase (`phase`)
with the session that trains, `forecast` turns both into step times, `slots` into job slots, `caps` chooses caps,
`presets` weighs the alternatives; `command` puts them together and `render` says it.
"""
