"""Where two optimizers part, and why."""
