"""The tools of the documentation site; run them with `python -m website`."""
