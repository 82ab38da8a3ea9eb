"""All points of a grid of hyperparameters, and all seeds, in one compiled program."""
