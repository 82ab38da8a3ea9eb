"""Least squares, roots and fixed points, in one compiled loop."""
