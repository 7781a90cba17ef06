"""Chapter 30: the log that was kept while the engine was tuned, in the form that the chapter reads; measures nothing.

    python -m experiments.ch30_story

Each row has the commit after which it was measured, with `nanoeuler train --profile`, `benchmarks/gpu_step.py`,
`gpu_pretrain.py` or `gpu_decode.py`, on an H100 or the GPU that the row names, without other programs on it. The time
of a token is that of `gpu_decode.py`, including the host's part; "card_ms" is only the GPU's part. "expected_to_save":
bounds in milliseconds, written down from the lists of launches before the change was made, for the GPU in
"expected_on"; bounds of several changes are added. "aims": the aim, as a multiple of torch.compile's speed.
"prepared": changes that were written in parallel and measured in alternation in one call; the contestants in
data/results/gpu_levers.json have these names, and each commit's message says what the change was expected to save.
"predicted": the prediction of a message for a time, in milliseconds and from which time, or for a ratio.
"""

from tools.notebooks.results import save

MADE_ON = {
    "system": "Linux x86_64",
    "cpu": "Intel(R) Xeon(R) Processor",
    "cores": 16,
    "gpu": "NVIDIA H100 80GB HBM3",
    "python": "3.12.3",
    "numpy": "2.5.2",
}
AIMS = {"bfloat16, 64 rows": 1.2, "tf32, 64 rows": 1.25, "bfloat16, 16 rows": 1.25, "bfloat16, a token": 2.5}
STAGES = [  # the changes, the commit, and by rows of 512 tokens: milliseconds per step, expected saving
    ("at first", "b077dc6", {64: (68.9, None), 16: (19.8, None)}),
    (
        "CUDA graphs; one wait per step instead of two; tokens sorted as 16-bit numbers while the GPU works; hidden "
        "written by the kernel of SwiGLU's backward pass",
        "272deb1",
        {64: (62.1, [0.5, 0.5]), 16: (18.1, [2.0, 6.0])},
    ),
    (
        "norms' outputs kept; sums of the gains' gradients with 1,024 threads; the fastest algorithms of cuBLASLt",
        "038cd38",
        {64: (59.5, [1.5, 3.5]), 16: (17.2, None)},
    ),
    (
        "one residual stream for all layers, with the norms' backward passes from y; hidden kept instead of "
        "recomputed; logits in blocks of 256 threads; SwiGLU with accesses of 16 bytes",
        "112f416",
        {64: (56.8, [1.4, 2.2]), 16: (16.9, None)},
    ),
]
OTHERS = [
    {
        "what": "tuning",
        "stage": "a separate plan for each length of rows",
        "first_ms": [58, 97],
        "later_ms": [12, 14],
        "commit": "b5e75f8",
    },
    {"what": "token", "stage": "at first", "ms": 1.73, "commit": "b077dc6"},
    {
        "what": "token",
        "stage": "attend rewritten; weights requested before the norm; multiprocessors without a head load the next "
        "weights into L2",
        "ms": 0.42,
        "commit": "3ed4d7d",
    },
    {
        "what": "token",
        "stage": "each thread of attend with its own softmax; the addend requested early; a row in shared memory in "
        "two halves that use all banks; tokens and logits copied within the graph",
        "ms": 0.372,
        "commit": "622837a",
    },
    {
        "what": "token",
        "stage": "launches that begin before the previous one ends, and request their weights",
        "ms": 0.22,
        "card": "NVIDIA H200",
        "commit": "5293211",
    },
    {
        "what": "overlap",
        "card": "NVIDIA H200",
        "card_ms": {
            "one after another": 0.2664,
            "overlapping": 0.2105,
            "overlapping, no weights fetched into L2": 0.2028,
        },
        "commit": "5293211",
    },
]
PREPARED = [  # for a step or a token: the contestant, its description, the expected saving in milliseconds, the commit
    ("step", "swiglu", "our own product that ends with SwiGLU", [1.3, 1.3], "4e88b8b"),
    (
        "step",
        "swiglu_back",
        "our own product that ends with SwiGLU's gradient, two warpgroups alternating",
        [0.5, 1.9],
        "f254188",
    ),
    ("step", "rope", "our own product that ends with RoPE", [0.5, 0.5], "4e88b8b"),
    ("step", "latest", "the data that was written last is read first, from the L2 cache", [0.3, 1.5], "4e88b8b"),
    ("step", "logits", "few logits at a time, so that the loss finds them in the L2 cache", [0, 0.7], "4e88b8b"),
    ("step", "powers", "three of sixteen of attention's exponentials by multiply-adds", [0.06, 0.1], "187cc62"),
    ("step", "all", "all six together", [4.7, 4.7], "f254188"),
    ("token", "fetch", "weights loaded into the L2 cache while attention runs", [0, 0.025], "5572b93"),
    ("token", "greedy on the GPU", "the token chosen on the GPU", [0.028, 0.028], "c62bd23"),
]
PREDICTED = {
    "what": "predicted",
    "sampled_on_the_card": {"from_ms": 0.37, "ms": 0.215},
    "one_proposal": {"ms": 0.24, "tokens_a_round": 1.371, "speedup": 1.2},
    "expected_on": "NVIDIA H100",
    "commit": "c62bd23",
}


def main() -> None:
    steps = [
        {
            "what": "step",
            "rows": rows,
            "stage": stage,
            "ms": ms,
            "expected_to_save": expected,
            "expected_on": expected and f"NVIDIA {'H100' if stage == STAGES[-1][0] else 'H200'}",
            "commit": commit,
        }
        for stage, commit, found in STAGES
        for rows, (ms, expected) in found.items()
    ]
    prepared = [
        {
            "what": "prepared",
            "of": of,
            "way": way,
            "stage": stage,
            "expected_to_save": expected,
            "expected_on": "NVIDIA H100",
            "commit": commit,
        }
        for of, way, stage, expected, commit in PREPARED
    ]
    save(
        "ch30_story",
        {
            "model": "base",
            "precision": "bfloat16",
            "context": 512,
            "aims": AIMS,
        },
        steps + OTHERS + prepared + [PREDICTED],
        made_on=MADE_ON,
    )


if __name__ == "__main__":
    main()
