"""How parameters and states are named, stored and brought together again."""
