"""What the `flexspec` command exits with, 0 aside."""

CHECK_FAILED = 1
"""Something was measured or compared, and it is not as it should be."""
GENERATION_FAILED = 1
"""A text could not go on; the others are there."""
USAGE = 2
"""The command line or its files are wrong: one line on stderr says how."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, as shells have it."""
BROKEN_PIPE = 141
"""Whoever read the output has gone: 128 + SIGPIPE, as shells have it."""
