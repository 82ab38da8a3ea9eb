"""What is measured of a step: sizes, ratios, angles, noise."""
