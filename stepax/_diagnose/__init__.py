"""`diagnose`: mistakes that train without an error.

`stages.py` says what a rule is given: the parts of a transformation in the order in
which they change each parameter.  A rule is a function that yields the problems it
finds; `table.py` lists all of them.
"""
