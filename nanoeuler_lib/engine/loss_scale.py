"""The loss scale of float16: a power of two that multiplies the loss, so that small gradients do not round to 0.

The smallest float16 above 0 is 2^-24, and the mean over a batch of 64 x 512 tokens gives each logit a gradient below
2^-15. So every gradient is computed times the scale. A sum that exceeds the largest float16, 65,504, becomes infinite.
Micikevicius et al. 2018, section 3.2.
"""

from dataclasses import dataclass

import numpy as np

GROWS_AFTER = 2000  # steps without an overflow after which the scale is doubled


@dataclass
class LossScale:
    """Hold the loss scale and count the steps since it last changed.

    After an overflow, the step is taken again with the same batch at half the scale. So every batch is used once, the
    schedule and the moments count the same steps as without the overflow, and only the scale remembers it. Dividing a
    gradient by a power of two is exact. The norm and the losses that decide are the same on all GPUs of a run, and so
    is the decision.
    """

    value: int = 2**16
    steps: int = 0

    def accepts(self, norm: float, losses: np.ndarray) -> bool:
        """Return whether a step is done; if its gradient overflowed, halve the scale and return False.

        norm, losses: of the step. If a loss is not finite, no scale can help, so the step is done and has failed.
        """
        if np.isfinite(norm):
            self.steps += 1
            if self.steps == GROWS_AFTER:
                self.value, self.steps = 2 * self.value, 0
            return True
        if self.value == 1 or not np.isfinite(losses).all():
            return True
        self.value, self.steps = self.value // 2, 0
        return False
