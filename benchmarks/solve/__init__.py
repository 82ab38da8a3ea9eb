"""Compare least squares, roots and fixed points with SciPy and Optimistix."""
