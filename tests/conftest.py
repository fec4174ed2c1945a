"""What holds for all tests."""

import signal

from hypothesis import HealthCheck, settings

# A time limit on an example fails on a busy machine.
settings.register_profile("unhurried", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow]))
settings.load_profile("unhurried")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the programs that they start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)
