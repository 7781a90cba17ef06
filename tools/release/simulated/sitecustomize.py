"""Set the number of BLAS threads in every Python process that portable.py starts.

OMP_NUM_THREADS cannot give more threads than there are cores. On two cores, NumPy would use two
threads instead of four, and would divide sums differently.
"""

import os

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
asked = os.environ.get("OMP_NUM_THREADS", "")
if asked.isdigit() and int(asked) > cores:
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_limits

    threadpool_limits(int(asked), user_api="blas")
