"""Gradient processing and optimization for JAX, with Optax's interface."""
