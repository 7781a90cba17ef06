"""Papers that are marked: `nanoeuler assign 08 --seed S` hands them out, with --grade it marks what comes back.

A paper has three problems, drawn from a seed and a student's name: a derivation, a function that breaks one rule of its
specification, a measurement. Answers are functions in answers.py. They run in a process of their own, with limits, on
arrays that are drawn from the seed and that nobody has seen; what counts are the arrays that come back.

There is no answer in this package. A seed says what was drawn, and whoever has it has the data that answers are marked
with.
"""
