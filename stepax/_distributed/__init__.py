"""Optimizers on meshes of devices."""
