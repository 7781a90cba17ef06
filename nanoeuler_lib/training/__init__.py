"""Modules that train models: datasets, the training loop, the run folder and its report."""
