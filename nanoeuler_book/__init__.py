"""What the chapters import and a training run does not: checks, figures, drills, interpretability, scaling fits."""
