"""What chapters plot that takes longer than a cell: `make results CH=15` stores data/results/ch15.json."""
