"""Answer a request with a GGUF file in llama.cpp, all in float32: `python ask_llama_cpp.py FILE REQUEST.json OUT`."""

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

file, request, out = map(Path, sys.argv[1:])
asked, texts = json.loads(request.read_text()), json.loads((request.parent / "strings.json").read_text())
model = llama_cpp.Llama(
    str(file), n_ctx=len(asked["row"]), n_batch=len(asked["row"]), n_threads=1, n_threads_batch=1,
    logits_all=True, flash_attn=False, type_k=0, type_v=0, verbose=False,
)  # fmt: skip
strings = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]


def logits_of(ids):
    """Return the logits [T, V] of these ids, computed with an empty cache."""
    model.reset()
    model.eval(ids)
    return model.scores[: len(ids)].copy()


greedy = []
for prompt in asked["prompts"]:
    model.reset()
    model.eval(prompt)
    ids = list(prompt)
    for _ in range(asked["tokens"]):
        ids.append(int(model.scores[len(ids) - 1].argmax()))
        model.eval(ids[-1:])
    greedy.append(ids[len(prompt) :])
np.save(out / "logits.npy", logits_of(asked["row"]).astype(np.float32))
# This is the version of the Python package; llama.cpp itself has build numbers instead.
answer = {"version": f"llama-cpp-python {llama_cpp.__version__}", "strings": strings, "greedy": greedy}
(out / "answer.json").write_text(json.dumps(answer))
