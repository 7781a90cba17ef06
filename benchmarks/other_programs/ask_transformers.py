"""Answer a request with a Hugging Face folder in transformers: `python ask_transformers.py FOLDER REQUEST.json OUT`."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, request, out = map(Path, sys.argv[1:])
asked, texts = json.loads(request.read_text()), json.loads((request.parent / "strings.json").read_text())
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
strings = [tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in texts]
greedy = []
with torch.inference_mode():
    logits = model(torch.tensor([asked["row"]])).logits[0].numpy()
    for prompt in asked["prompts"]:
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=asked["tokens"], do_sample=False, eos_token_id=None,
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long), pad_token_id=0,
        )  # fmt: skip
        greedy.append(ids[0, len(prompt) :].tolist())
np.save(out / "logits.npy", logits)
answer = {"version": transformers.__version__, "strings": strings, "greedy": greedy}
(out / "answer.json").write_text(json.dumps(answer))
