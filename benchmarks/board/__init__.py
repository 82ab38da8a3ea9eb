"""The leaderboard: optimizers after equal tuning, on small tasks.

    python -m benchmarks.board [--task digits] [--optimizer lion] [--jobs 2]
    python -m benchmarks.board --pages

`rules.py` is fixed before a run, `engine.py` makes a trial, `store.py` keeps what was
run as `docs/evidence/board/TASK/OPTIMIZER.json`, and the pages are made of these files.
"""
