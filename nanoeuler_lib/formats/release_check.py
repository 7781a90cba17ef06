"""Check a published model: every file against SHA256SUMS and, where transformers is installed, what the model computes.

    python check.py

It needs only Python and this folder. Exit code 0: everything is as published; 1: something differs. The hashes detect
damaged files. The logits detect a program that interprets the weights differently: transformers computes them in
float32 for the tokens of logits.safetensors, and they are compared with those in this file. README.md is not in
SHA256SUMS, because its publisher fills in lines.
"""

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
APART = 1e-3  # tolerance relative to the largest logit; different rounding gives about a thousandth of it
BLANK = "TO FILL IN"


def changed_files() -> list[str]:
    """Return a line for each file in SHA256SUMS that is missing or has changed."""
    wrong = []
    for line in (HERE / "SHA256SUMS").read_text("utf-8").splitlines():
        digest, name = line.split("  ", 1)
        if not (HERE / name).is_file():
            wrong.append(f"{name}: is missing")
        elif (actual := sha256(HERE / name)) != digest:
            wrong.append(f"{name}: SHA-256 must be {digest[:12]}..., got {actual[:12]}...")
        else:
            print(f"{name}: as published")
    return wrong


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def other_logits() -> list[str]:
    """Return a line if the logits that transformers computes are wrong, else an empty list."""
    if not (HERE / "config.json").is_file():
        print("logits: this release has no form for transformers")
        return []
    try:
        import torch
        import transformers
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"logits: not compared, {error.name} is not installed")
        return []
    stored = load_file(HERE / "logits.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE, dtype=torch.float32)
    with torch.no_grad():
        logits = model(stored["tokens"][None]).logits[0]
    apart, largest = float(abs(logits - stored["logits"]).max()), float(abs(stored["logits"]).max())
    said = f"logits: transformers {transformers.__version__} is at most {apart:.1e} apart, the largest is {largest:.1f}"
    if apart <= APART * largest:  # false for NaN
        print(said)
        return []
    return [f"{said}: the distance must be at most {APART * largest:.1e}"]


def main() -> int:
    """Check the release, print the result, and return the exit code."""
    wrong = changed_files() or other_logits()
    blank = (HERE / "README.md").read_text("utf-8").count(BLANK) if (HERE / "README.md").is_file() else 0
    if blank:
        print(f"README.md: {blank} lines are still to be filled in by the publisher")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
