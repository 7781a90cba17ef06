"""Smooth functions of one variable that the assignments use in their layers."""

SMOOTH = [
    "np.tanh({z})",
    "np.arctan({z})",
    "np.sin({z})",
    "{z} / np.sqrt(1 + {z} ** 2)",
    "{z} / (1 + np.exp(-{z}))",
    "np.log1p({z} ** 2)",
    "{z} * np.exp(-({z} ** 2))",
]
