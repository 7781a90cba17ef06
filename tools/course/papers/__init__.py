"""Hand out and grade individual assignments: `nanoeuler assign 08 --seed S`, and with --grade for the answers.

An assignment has three problems, generated from a seed and a student's name: a derivation, a function to repair and a
measurement. Students write functions in answers.py. The grader runs them in a separate process, with limits, on arrays
that it generates from the seed and that no student has seen. Only the returned arrays are graded.

This package contains no solutions. The seed determines the grading data, so keep it secret.
"""
