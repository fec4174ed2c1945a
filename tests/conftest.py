"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A time limit on an example fails on a busy machine.
settings.register_profile("unhurried", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("unhurried")
