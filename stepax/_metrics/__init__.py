"""Measurements of a step: sizes, ratios, angles, noise."""
