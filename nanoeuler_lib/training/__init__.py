"""Runs: what they learn from, the loop, the folder they leave, and how good their models are."""
