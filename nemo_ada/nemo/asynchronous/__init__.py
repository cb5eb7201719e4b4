"""Asynchronous training: collectors, groups in flight, prompts by ticket, the step's advantages."""
