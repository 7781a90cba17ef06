"""Replace the feed-forward layer by a mixture of experts, and tell the stories of Königsberg in four dialects.

A mixture of E experts of width w is a SwiGLU layer of width F = E w + E. The first E w columns of `gate` and `up` are
those of the experts, one expert after another, and the last E columns of `gate` are the router's logits. The last E
columns of the output are 0, so the last E columns of `up` and the last E rows of `down` have no effect. Thus a pair of
functions for `ops.use` is enough to train a mixture in the book's model. All experts are computed for every position.
Chapter 35.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import cache, wraps

import numpy as np

import konigsberg
from nanoeuler_lib import ops
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops.reference import swiglu_backward, swiglu_forward
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

CONTEXT = 128


def routing(logits: np.ndarray, top: int) -> np.ndarray:
    """Return the softmax over the `top` largest logits, and 0 for the other experts.

    logits: [..., E]; of equal logits, the first is chosen. Returns [..., E].
    """
    order = np.argsort(-logits, axis=-1, kind="stable")
    chosen = np.zeros(logits.shape, bool)
    np.put_along_axis(chosen, order[..., :top], True, axis=-1)
    powers = np.where(chosen, np.exp(logits - logits.max(axis=-1, keepdims=True)), 0)
    return powers / powers.sum(axis=-1, keepdims=True)


def experts_forward(gate, up, experts, top):
    """Compute a mixture of experts: the sum over the chosen experts of routing weight times SwiGLU.

    gate, up: [..., F] with F = E w + E; the last E columns of gate are the router's logits. Returns y [..., F], whose
    last E columns are 0, and (gate, up, p) with the routing weights p [..., E].
    """
    p = routing(gate[..., -experts:], top)  # [..., E]
    h, _ = swiglu_forward(gate[..., :-experts], up[..., :-experts])  # [..., E w]
    y = np.zeros_like(gate)
    y[..., :-experts] = h * np.repeat(p, h.shape[-1] // experts, axis=-1)
    return y, (gate, up, p)


def experts_backward(dy, saved):
    """Compute the gradients of a mixture of experts with respect to gate and up.

    dy: [..., F]; saved: (gate, up, p) from `experts_forward`. The gradient of the logits is in the last E columns of
    dgate. The last E columns of dup are 0.
    """
    gate, up, p = saved
    experts = p.shape[-1]
    h, kept = swiglu_forward(gate[..., :-experts], up[..., :-experts])
    dy = dy[..., :-experts]
    dgate, dup = np.zeros_like(gate), np.zeros_like(up)
    dh = dy * np.repeat(p, h.shape[-1] // experts, axis=-1)
    dgate[..., :-experts], dup[..., :-experts] = swiglu_backward(dh, kept)
    dp = (dy * h).reshape(*p.shape, -1).sum(axis=-1)  # [..., E]
    dgate[..., -experts:] = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    return dgate, dup


def balance_gradient(logits, p, weight):
    """Compute the gradient of the auxiliary loss with respect to the logits [N, E].

    The auxiliary loss is `weight * E * sum_e f_e P_e`. p: the routing weights [N, E]. f_e: the share of the choices
    that fell on expert e, a constant. P_e: the mean over positions of the softmax over all logits. Fedus et al. (2022),
    equations 4 to 6.
    """
    N, E = logits.shape
    f = (p > 0).sum(axis=0) / (p > 0).sum()  # [E]
    q = np.exp(logits - logits.max(axis=-1, keepdims=True))
    q /= q.sum(axis=-1, keepdims=True)  # [N, E]
    dq = weight * E * f / N
    return q * (dq - (q * dq).sum(axis=-1, keepdims=True))


def bias_step(scores, b, step, top):
    """Return the biases after one update of the bias rule, by which all experts come to have equal loads.

    scores: [n, E]; b: [E]; a token chooses the `top` experts with the largest biased scores. The bias rises by `step`
    if an expert has fewer tokens than average, and falls by `step` if it has more. Wang et al. (2024).
    """
    n, E = scores.shape
    chosen = np.argsort(-(scores + b), axis=1, kind="stable")[:, :top]
    loads = np.bincount(chosen.ravel(), minlength=E)  # [E]
    return b + step * np.sign(n * top / E - loads)


def mixture(
    experts: int,
    top: int,
    balance: float = 0.0,
    forward: Callable = experts_forward,
    backward: Callable = experts_backward,
    log: list[np.ndarray] | None = None,
) -> dict[str, Callable]:
    """Return the pair of functions for `ops.use` that turns the feed-forward layer into a mixture of experts.

    balance: weight of the auxiliary loss, whose gradient is added to the gradient of the logits; forward, backward:
    functions with the arguments of `experts_forward` and `experts_backward`; log: a list to which every forward pass
    through a layer appends its routing weights [N, E].
    """

    @wraps(forward)
    def forward_pass(gate, up):
        y, saved = forward(gate, up, experts, top)
        if log is not None:
            log.append(saved[-1])
        return y, saved

    @wraps(backward)
    def backward_pass(dy, saved):
        dgate, dup = backward(dy, saved)
        if balance:
            dgate[..., -experts:] += balance_gradient(saved[0][..., -experts:], saved[-1], balance)
        return dgate, dup

    return {"swiglu_forward": forward_pass, "swiglu_backward": backward_pass}


def routed(model: GPT, tokens: np.ndarray, experts: int, top: int, rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Return what the routers of a trained mixture read and choose, for tokens [B, T].

    Returns the inputs of the feed-forward layers [L, B, T, D] and the routing weights [L, B, T, E].
    """
    inputs, weights = [], []
    for start in range(0, len(tokens), rows):
        batch = tokens[start : start + rows]
        with ops.use(**mixture(experts, top, log=(log := []))):
            model.hidden(batch)
        weights.append(np.stack(log).reshape(-1, *batch.shape, experts))
        layers = model.plan(*batch.shape).layers
        inputs.append(np.stack([layer.y2.reshape(*batch.shape, -1) for layer in layers]))
    return np.concatenate(inputs, axis=1), np.concatenate(weights, axis=1)


# ---- Königsberg in four dialects

# In dialect d, each of these words has its spelling d with probability LIKELY, and each other spelling with RARELY.
SPELLINGS = {
    "the": ("the", "dhe", "te", "ze"),
    "it": ("it", "et", "ut", "id"),
    "to": ("to", "tho", "tu", "ta"),
    "and": ("and", "ant", "un", "ond"),
    "was": ("was", "wos", "wes", "vas"),
}
LIKELY, RARELY = 0.7, 0.1
MARKED = re.compile(rf"(?<= )({'|'.join(SPELLINGS)})(?=[ .,])")
ANY_SPELLING = re.compile(rf"(?<= )({'|'.join(form for forms in SPELLINGS.values() for form in forms)})(?=[ .,])")


def spelled(text: str, dialect: int, rng: np.random.Generator) -> str:
    """Return a story with each marked word in a spelling drawn for the dialect, 0 to 3."""

    def respell(match):
        other = int(rng.integers(3))  # one of the three other spellings
        likely = rng.random() < LIKELY
        return SPELLINGS[match[1]][dialect if likely else other + (other >= dialect)]

    return MARKED.sub(respell, text)


@cache
def known(marks: int) -> float:
    """Return I(spellings of `marks` words; dialect) in bits: 2 minus the mean entropy of the exact posterior."""
    bits = 0.0
    for counts in compositions(marks, 4):
        ways = math.factorial(marks) / math.prod(map(math.factorial, counts))
        p = np.array([LIKELY**n * RARELY ** (marks - n) for n in counts])  # of one sequence, by dialect
        posterior = p / p.sum()
        bits += ways * p.sum() / 4 * (2 + (posterior * np.log2(posterior)).sum())
    return bits


def compositions(total: int, parts: int) -> Iterable[tuple[int, ...]]:
    """Yield all tuples of `parts` integers, 0 or more, with this total."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield first, *rest


def exam(stories: int, tokenizer: Tokenizer, seed: int, first: int = 4) -> tuple[np.ndarray, ...]:
    """Return stories in random dialects that fit the frame's context, with places at which to ask about the dialect.

    Returns tokens [n, 128]; dialects [n]; the positions [n, 2, first] of the last tokens of the first marked words and
    of the first full stops; the number of marked words up to each of these places, of the same shape. A story is taken
    by its usual text, which is independent of its dialect: it has enough marked words and full stops, and fits in any
    spelling.
    """
    rng, end = np.random.default_rng(seed), tokenizer.special_tokens[END_OF_TEXT]
    longer = {word: max(len(tokenizer.encode(f" {s}")) for s in forms) - 1 for word, forms in SPELLINGS.items()}
    rows, dialects, positions, marks = [], [], [], []
    for story in konigsberg.stories(20 * stories, seed):
        words = MARKED.findall(story.text)
        fits = len(tokenizer.encode(story.text)) + sum(longer[word] for word in words) < CONTEXT
        if not fits or min(len(words), story.text.count(".")) < first:
            continue
        dialects.append(int(rng.integers(4)))
        text = spelled(story.text, dialects[-1], rng)
        ids = tokenizer.encode(text)
        rows.append(np.full(CONTEXT, end))
        rows[-1][1 : len(ids) + 1] = ids
        token_ends = np.cumsum(tokenizer.token_lengths[ids])  # in bytes
        ends = [len(text[: match.end()].encode()) for match in ANY_SPELLING.finditer(text)]
        stops = [len(text[: match.end()].encode()) for match in re.finditer(r"[.]", text)]
        places = np.array([ends[:first], stops[:first]])
        positions.append(1 + np.searchsorted(token_ends, places))
        marks.append((np.array(ends)[:, None, None] <= places).sum(axis=0))
        if len(rows) == stories:
            break
    return np.array(rows), np.array(dialects), np.array(positions), np.array(marks)


def guesses(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return a linear probe's guesses of the labels of the second half of `inputs` [n, D]; it learns from the first."""
    half = len(inputs) // 2
    ones = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    weights = np.linalg.lstsq(ones[:half], np.eye(labels.max() + 1)[labels[:half]], rcond=None)[0]
    return (ones[half:] @ weights).argmax(axis=1)


def information(a: np.ndarray, b: np.ndarray) -> float:
    """Return the mutual information in bits of two label arrays [n], from their counts (biased upwards for small n)."""
    _, a = np.unique(a, return_inverse=True)
    _, b = np.unique(b, return_inverse=True)
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a, b), 1 / len(a))
    product = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    filled = joint > 0
    return float((joint[filled] * np.log2(joint[filled] / product[filled])).sum())
