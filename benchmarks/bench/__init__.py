"""The benchmark: the cost of a step compared with Optax and PyTorch."""
