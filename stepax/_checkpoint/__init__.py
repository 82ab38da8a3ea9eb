"""Naming, storing and restoring parameters and states."""
