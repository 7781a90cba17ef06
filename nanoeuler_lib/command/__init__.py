"""Modules of the `nanoeuler` command: `cli` runs it, `arguments` has its options, `ask` is the loop of its chat."""
