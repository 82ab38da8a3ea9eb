"""Optimizers on device meshes."""
