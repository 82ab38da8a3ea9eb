"""The demonstration: a small network learns to read handwritten digits."""
