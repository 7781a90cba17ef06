"""The `nanoeuler` command: `cli` does, `arguments` explains, `ask` is the loop of `nanoeuler chat`."""
