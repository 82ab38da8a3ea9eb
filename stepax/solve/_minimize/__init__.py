"""Minimization to convergence, in one compiled loop."""
