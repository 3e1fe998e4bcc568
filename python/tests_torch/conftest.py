"""Makes tests interruptible and gives them a separate cache folder. If pytest was started in the background it ignores
SIGINT, and the processes that tests start would inherit that."""

import signal

from caches import own_cache as own_cache

signal.signal(signal.SIGINT, signal.default_int_handler)
