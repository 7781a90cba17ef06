"""Read by every Python that starts under a setting of portable.py: BLAS takes as many threads as that says.

OMP_NUM_THREADS alone gives no more than there are cores: on two, four would be two, and sums would be split otherwise.
"""

import os

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
asked = os.environ.get("OMP_NUM_THREADS", "")
if asked.isdigit() and int(asked) > cores:
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_limits

    threadpool_limits(int(asked), user_api="blas")
