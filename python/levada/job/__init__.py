"""Ranks: joining a job, process groups, meshes, messages between hosts."""
