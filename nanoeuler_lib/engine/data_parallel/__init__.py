"""Data-parallel training on 1, 2, 4 or 8 GPUs of one host, with one process per GPU. Chapter 33.

The results are bitwise identical for any number of GPUs. `group.py`: the processes, their messages, and the detection
of lost processes. `cut.py`: the order of summation, and which GPU owns which parameters. `gpt.py`: weights and moments,
distributed among their owners. `step.py`: a training step.
"""

from nanoeuler_lib.engine.data_parallel.cut import expect_shards, tree
from nanoeuler_lib.engine.data_parallel.gpt import GPT, AdamW, shared_out
from nanoeuler_lib.engine.data_parallel.group import Group, started_by_launcher, tried
from nanoeuler_lib.engine.data_parallel.step import Step

__all__ = [
    "GPT",
    "AdamW",
    "Group",
    "Step",
    "expect_shards",
    "shared_out",
    "started_by_launcher",
    "tree",
    "tried",
]
