"""The command for callables of Python."""
