"""The benchmark: what a step costs beside Optax and PyTorch."""
