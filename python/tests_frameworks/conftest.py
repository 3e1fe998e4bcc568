"""What tests start can be interrupted, also where pytest was started in the background, as which it ignores SIGINT and
would hand that on. Their caches lie in a folder of their own."""

import signal

from caches import own_cache as own_cache

signal.signal(signal.SIGINT, signal.default_int_handler)
