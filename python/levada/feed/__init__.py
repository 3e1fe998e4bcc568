"""Feeds: batches from a reader to every rank."""
