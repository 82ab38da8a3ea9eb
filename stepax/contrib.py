"""Optimizers from newer or less travelled papers: names only."""
