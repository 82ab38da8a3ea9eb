"""`diagnose`: mistakes that train without an error.

`view.py` reads a transformation: the stages that change each parameter, in order, with
what is known of them (`stages.py`), and schedules (`rates.py`).  A rule is a
function that yields the problems that it finds; `diagnose.py` lists all of them.
"""
