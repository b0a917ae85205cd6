"""The suite draws the same examples each time; HYPOTHESIS_PROFILE=soak draws new ones."""

from __future__ import annotations

import os
import signal
import sys

from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does.
TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", TIMELESS, derandomize=True)
settings.register_profile("soak", TIMELESS)
# Readline puts it into the environment of pytest-xdist's workers, and commands obey it.
os.environ.pop("COLUMNS", None)
# Workers, and the processes that tests start, import the same modules: compile them once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell starts jobs in the background with it ignored, which commands inherit; tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
