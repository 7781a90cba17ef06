"""Hand out and grade assignments: `nanoeuler assign 08 --seed S` hands them out, and with --grade it grades answers.

An assignment has three problems, drawn from a seed and a student's name: a derivation, a function that breaks one rule
of its specification, a measurement. Answers are functions in answers.py. They run in a process of their own, with
limits, on arrays that are drawn from the seed and that nobody has seen; only the returned arrays are graded.

There is no answer in this package. A seed determines the grading data, so keep it secret.
"""
