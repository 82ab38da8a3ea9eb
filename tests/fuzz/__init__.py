"""Random programs, run beside Optax: what they are made of and how they are run."""
