"""Helpers for the tests of the command: options of a small run, and a standard stream that tests can read."""

import io

SMALL = "--vocab-size 258 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --predict 2"
SHORT = "--steps 4 --batch 4 --warmup 1 --valid-every 2 --sample-every 2 --save-every 2"
PLAIN = {"SMALL": SMALL, "SHORT": SHORT, "TRAIN": f"train --run new {SMALL} {SHORT} --data"}


class Stream(io.TextIOWrapper):
    """A standard stream that can look like a terminal, and whose flushed text can be read."""

    def __init__(self, terminal=False, content=b""):
        super().__init__(io.BytesIO(content), "utf-8", newline="")
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def text(self):
        self.flush()
        return self.flushed()

    def flushed(self):
        return self.buffer.getvalue().decode(errors="surrogateescape")
