"""Sums over ranks, in buckets."""
