"""Tables and pictures in pages, made of evidence or of exact counts."""
