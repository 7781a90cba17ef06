"""Data-parallel training on many cards, one process for each, with the same bits on any number of them. Chapter 33.

`group.py`: the processes, what they send, and who notices that one is gone. `cut.py`: the tree of shards, and which
card owns which part of the parameters. `gpt.py`: weights and moments by owner. `step.py`: a step.
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
