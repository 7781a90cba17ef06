"""Modules that the chapters import but a training run does not: checks, figures, drills, interpretability, scaling."""
