"""Ranks: joining a job, process groups, meshes, and messages between hosts."""
