"""For all tests: what they start can be interrupted, and no example fails for the time it took."""

import signal

from hypothesis import settings

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background ignores it, and so would its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
