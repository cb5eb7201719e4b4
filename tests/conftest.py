"""No test fails for being slow: hypothesis gives a case 200 ms by default, which a busy machine misses now and then."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
