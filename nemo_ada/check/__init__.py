"""`nemo-ada check`: what can be wrong with a configuration, found before a GPU hour is spent.

A check is a small function from facts (cluster config, model shape, memory sizes) to findings; `command` gathers the
facts and runs them all. Facts about models and hard constraints: Megatron-core, NeMo-RL v0.7.0, vLLM.
"""
