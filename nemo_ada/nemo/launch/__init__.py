"""One `nemo-ada train` job: starting NeMo-RL, its records, checkpoints, and the end of the job."""
