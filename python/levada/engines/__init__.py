"""Engines whose transport is reached from Python."""
