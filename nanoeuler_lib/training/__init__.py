"""Train models: data, the loop, the run's folder and its report."""
