"""Experiments whose results the chapters plot and that take too long for a cell: `make results CH=15`.

`make results CH=15` runs experiments/ch15.py, which stores data/results/ch15.json.
"""
