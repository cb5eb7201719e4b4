"""Whether a response is correct: math-verify in killable processes, with a hard deadline per answer.

This package does not import math-verify. It runs in the verifier's own processes (`server`).
"""
