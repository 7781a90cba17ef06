"""Programs that run, number, measure, compare and update the notebooks, and store the results that they plot."""
