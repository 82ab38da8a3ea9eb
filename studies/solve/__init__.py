"""Benchmarks of `minimize`'s relatives; see `python -m studies.solve --help`."""

import os


# Before LAPACK is loaded: its threads wait for each other in a loop, which counts as
# time of the processor, and for matrices as small as here exceeds that of the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
