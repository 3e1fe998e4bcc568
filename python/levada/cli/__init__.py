"""The command for Python callables."""
