"""The part of the command that runs Python callables."""
