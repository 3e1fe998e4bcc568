"""Pipelines: stages, and the processes that run them."""
