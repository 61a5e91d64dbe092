"""Wire-level fakes of chat platforms, on loopback. They reject the calls that the real platforms reject, and
simulate failures.
"""
