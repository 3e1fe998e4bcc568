"""What tests start can be interrupted, also where pytest was started in the background, as which it ignores SIGINT and
would hand that on."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
