"""Tests of libraries that depend on Optax, with Optax and with Stepax in its place."""
