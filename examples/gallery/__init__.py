"""Short programs, each of which trains something and draws what came of it."""
