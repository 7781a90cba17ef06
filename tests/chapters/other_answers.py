"""Right answers to gaps in a different style than the book's: with loops, lists, einsum or keyword arguments.

There is a class for each chapter with a function for each gap; KERNELS has the bodies of CUDA functions. `gap_runs.py
NN other` runs a chapter with these answers. A gap without a function gets the book's answer with the stub's argument
names, returning lists instead of arrays.
"""

import math
from collections import Counter
from itertools import pairwise

import numpy as np


class Chapter00:
    def my_bigram(train):
        counts = Counter(pairwise(train))
        return [[counts[a, b] for b in range(256)] for a in range(256)]

    def my_surprise(p):
        bits = np.array([-math.log2(x) for x in np.ravel(p)]).reshape(np.shape(p))
        return bits if np.ndim(p) else bits.item()

    def my_frequency_bits(train, valid):
        counts, total = Counter(list(train)), 0.0
        for byte in valid:
            total -= math.log2((counts[byte] + 1) / (len(train) + 256))
        return total / len(valid)

    def my_embed_forward(tokens, table):
        B, T = tokens.shape
        x = np.zeros((B, T, table.shape[1]), table.dtype)
        for b in range(B):
            for t in range(T):
                x[b, t] = table[tokens[b, t]]
        return x, (tokens, table.shape)

    def my_embed_backward(dx, saved):
        tokens, shape = saved
        B, T = tokens.shape
        dtable = np.zeros(shape, dx.dtype)
        for b in range(B):
            for t in range(T):
                dtable[tokens[b, t]] += dx[b, t]
        return dtable

    def my_peeks(predict):
        text = b"Murr has the marzipan."
        for i in range(len(text)):
            for other in (text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :], text[:i] + bytes(len(text) - i)):
                for old, new in zip(predict(text)[: i + 1], predict(other)[: i + 1], strict=True):
                    if list(old) != list(new):
                        return 1
        return 0


class Chapter01:
    def my_encode_word(word, merges):
        ids, new = [*word], {pair: 256 + i for i, pair in enumerate(map(tuple, merges))}
        while known := [(new[p], i) for i, p in enumerate(pairwise(ids)) if p in new]:
            _, at = min(known)
            ids[at : at + 2] = [min(known)[0]]
        return ids


class ChapterA4:
    def my_pair_counts(words):
        counts = Counter()
        for word, times in words.items():
            counts.update(Counter({pair: n * times for pair, n in Counter(pairwise(word)).items()}))
        return counts

    def my_merge_word(word, pair, new):
        merged, i = [], 0
        while i < len(word):
            hit = tuple(word[i : i + 2]) == tuple(pair)
            merged.append(new if hit else word[i])
            i += 1 + hit
        before, after = Counter(pairwise(word)), Counter(pairwise(merged))
        return merged, list((before - after).elements()), list((after - before).elements())

    def my_merge_by_rank(ids, id_of_pair):
        ids = list(ids)
        while ids[1:]:
            new, at = min((id_of_pair.get(p, math.inf), i) for i, p in enumerate(pairwise(ids)))
            if new == math.inf:
                break
            ids = ids[:at] + [new] + ids[at + 2 :]
        return ids


class Chapter02:
    def my_cross_entropy(q, p):
        return sum(-a * math.log2(b) if b else math.inf for a, b in zip(q, p, strict=True) if a > 0)

    def my_bits_per_byte(nats, lengths):
        return math.fsum(float(n) for n in nats) / math.log(2) / sum(int(n) for n in lengths)

    def my_followers(ids, order):
        pairs = [(tuple(ids[i - n : i]), ids[i]) for n in range(order) for i in range(n, len(ids))]
        found = {context: Counter() for context, _ in pairs}
        for context, token in pairs:
            found[context].update([token])
        return found

    def my_next_probs(counts, context, strength, V):
        below = Chapter02.my_next_probs(counts, context[1:], strength, V) if context else [1 / V] * V
        seen = counts.get(tuple(context), {})
        if not seen:
            return below
        rest, total = strength * len(seen), sum(seen.values())
        return [(seen.get(v, 0) + rest * below[v]) / (total + rest) for v in range(V)]


class Chapter03:
    def my_linear_backward(dy, saved):
        x, w = saved
        return np.einsum("...o,io->...i", dy, w), np.einsum(
            "ni,no->io", x.reshape(-1, len(w)), dy.reshape(-1, w.shape[1])
        )

    def my_cross_entropy_forward(logits, targets):
        rows, losses = logits.reshape(-1, logits.shape[-1]), []
        for u, a in zip(rows, np.ravel(targets), strict=True):
            top = u.max()
            losses.append(top + np.log(np.exp(u - top).sum()) - u[a] if a >= 0 else 0 * top)
        return np.array(losses, logits.dtype).reshape(np.shape(targets)), {"logits": logits, "targets": targets}

    def my_cross_entropy_backward(dlosses, saved):
        logits, targets = (saved["logits"], saved["targets"]) if isinstance(saved, dict) else saved[:2]
        dlogits = np.zeros_like(logits)
        for n in np.ndindex(np.shape(targets)):
            if targets[n] >= 0:
                p = np.exp(logits[n] - logits[n].max())
                p /= p.sum()
                p[targets[n]] -= 1
                dlogits[n] = dlosses[n] * p
        return dlogits


class Chapter04:
    def my_step(table, before, after, rate, mean=True, sign=-1):
        moved = np.array(table)
        for a, b in zip(before, after, strict=True):
            e = np.exp(table[a] - max(table[a]))
            moved[a] += sign * rate * (e / e.sum() - (np.arange(len(e)) == b)) / (len(before) if mean else 1)
        return moved.tolist()

    def my_full_gradient(logits, counts, total=np.sum):
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (np.einsum("rv,r,r->rv", e, 1 / e.sum(axis=1), counts.sum(axis=1)) - counts) / total(counts)

    def my_talk(table, end, numbers, pick=None, follow=True, keep=False):
        drawn, token = [], end
        for number in numbers:
            e = np.exp(table[token if follow else end] - max(table[token if follow else end]))
            token = int(pick(e / e.sum(), number) if pick else (np.cumsum(e / e.sum())[:-1] <= number).sum())
            if token == end:
                return drawn + [end] * keep
            drawn.append(token)
        return drawn

    def my_largest_rate(q, times=2.0):
        return times / np.linalg.norm([[x * ((i == j) - y) for j, y in enumerate(q)] for i, x in enumerate(q)], 2)

    def my_weights(before, power=1):
        return [(len({*before}) * np.mean(before == token)) ** power for token in before]


class Chapter05:
    def my_verdict(a, n, rtol=1e-6, atol=1e-12):
        a, n = np.asarray(a), np.asarray(n)
        if a.shape != n.shape:
            return False
        pairs = zip(a.ravel().tolist(), n.ravel().tolist(), strict=True)
        return all(math.isfinite(x - y) and abs(x - y) <= rtol * max(abs(x), abs(y)) + atol for x, y in pairs)


class Chapter06:
    def my_head_forward(q, k, v):
        rows = [[q[i] @ k[j] / len(q[i]) ** 0.5 for j in range(i + 1)] for i in range(len(q))]
        e = [[math.exp(s - max(row)) for s in row] for row in rows]
        return [[sum(w * v[j][c] for j, w in enumerate(row)) / sum(row) for c in range(len(v[0]))] for row in e]

    def my_attention_forward(q, k, v):
        B, H, T, C = q.shape
        y, p = np.zeros_like(q), np.zeros((B, H, T, T), q.dtype)
        for b, h, i in np.ndindex(B, H, T):
            s = np.array([q[b, h, i] @ k[b, h, j] for j in range(i + 1)]) / math.sqrt(C)
            e = np.exp(s - s.max())
            p[b, h, i, : i + 1] = e / e.sum()
            for j in range(i + 1):
                y[b, h, i] += p[b, h, i, j] * v[b, h, j]
        return y, {"p": p, "q": q, "k": k, "v": v}

    def my_attention_backward(dy, saved):
        q, k, v = (np.asarray(x) for x in (saved if not isinstance(saved, dict) else [saved[n] for n in "qkv"])[:3])
        s = np.einsum("bhic,bhjc->bhij", q, k) / math.sqrt(q.shape[3])
        s = np.where(np.tri(q.shape[2], dtype=bool), s, -np.inf)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        dp = np.einsum("bhic,bhjc->bhij", dy, v)
        ds = p * (dp - np.einsum("bhij,bhij->bhi", dp, p)[..., None]) / math.sqrt(q.shape[3])
        dk, dv = np.einsum("bhij,bhic->bhjc", ds, q), np.einsum("bhij,bhic->bhjc", p, dy)
        return [x.astype(dy.dtype) for x in (np.einsum("bhij,bhjc->bhic", ds, k), dk, dv)]


class Chapter07:
    def my_rope_forward(x, cos, sin):
        y, half = np.empty_like(x), x.shape[-1] // 2
        for t in range(x.shape[-2]):
            for j in range(half):
                a, b = x[..., t, j], x[..., t, half + j]
                y[..., t, j] = a * cos[t, j] - b * sin[t, j]
                y[..., t, half + j] = a * sin[t, j] + b * cos[t, j]
        return y, (cos, sin)

    def my_rope_backward(dy, saved):
        cos, sin = saved
        z = (dy[..., : cos.shape[1]] + 1j * dy[..., cos.shape[1] :]) * (cos - 1j * sin)
        return np.concatenate([z.real, z.imag], axis=-1).astype(dy.dtype)


class Chapter08:
    def my_rmsnorm(x, gain, eps=1e-5):
        rstd = np.array([1 / np.sqrt(np.vdot(r, r) / r.size + eps) for r in x.reshape(-1, x.shape[-1])], x.dtype)
        rstd = rstd.reshape(*x.shape[:-1], 1)
        normed = x * rstd
        return np.einsum("...d,d->...d", normed, gain), (normed, rstd, gain)

    def my_rmsnorm_backward(dy, saved):
        normed, rstd, gain = saved
        D, dx, dgain = len(gain), np.empty_like(dy), np.zeros_like(gain, dtype=dy.dtype)
        for i in np.ndindex(dy.shape[:-1]):
            g = dy[i] * gain
            dx[i] = rstd[i] * (g - normed[i] * (g @ normed[i]) / D)
            dgain += dy[i] * normed[i]
        return [dx, dgain]


class Chapter09:
    def my_swiglu(gate, up):
        sigmoid = np.exp(-np.logaddexp(0, -gate))
        return np.multiply(np.multiply(gate, sigmoid), up), (gate, up, sigmoid)

    def my_swiglu_backward(dy, saved):
        gate, up, sigmoid = saved
        dgate, dup = np.empty_like(gate), np.empty_like(up)
        for i in np.ndindex(gate.shape):
            g, s = gate[i], sigmoid[i]
            dup[i] = dy[i] * g * s
            dgate[i] = dy[i] * up[i] * s * (1 + g * (1 - s))
        return [dgate, dup]


class Chapter10:
    def my_loss_scale(targets, weights):
        scale = []
        for k, weight in enumerate(weights):
            valid = sum(1 for row in targets for t in row if t[k] != -1)
            scale.append(float(weight) / valid if valid else 0.0)
        return scale


class Chapter11:
    def my_adamw_step(p, g, m, v, step, rate, beta1, beta2, eps, decay):
        m, v = m + (1 - beta1) * (g - m), v + (1 - beta2) * (np.square(g) - v)
        up, down = m / (1 - beta1**step), np.sqrt(v / (1 - beta2**step)) + eps
        return [p - rate * decay * p - rate * up / down, m, v]

    def my_learning_rate(step, config):
        c = config
        if step + 1 <= c.warmup:
            return c.rate * ((step + 1) / c.warmup)
        done = min((step - c.warmup) / max(c.steps - c.warmup, 1), 1)
        return c.rate * c.rate_end + c.rate * (1 - c.rate_end) * math.cos(math.pi / 2 * done) ** 2


class Chapter12:
    def my_exposure(scores, secret):
        own, above = np.asarray(scores)[secret], 0
        for score in np.ravel(scores):
            above += bool(score >= own)
        return math.log2(np.size(scores)) - math.log2(above)


class Chapter13:
    def my_swiglu(hidden, sigmoid, gate_up):
        F = hidden.shape[1]
        for y, s, both in zip(hidden, sigmoid, gate_up, strict=True):
            s[...] = np.exp(-np.logaddexp(0, -both[:F]))
            y[...] = both[:F] * s * both[F:]

    def my_running_lse(pieces):
        total = None
        for piece in pieces:
            for column in piece.T:
                total = column.copy() if total is None else np.logaddexp(total, column)
        return total


class Chapter14:
    def my_keep_top_p(p, threshold):
        keep = np.zeros(p.shape, bool)
        for i in np.ndindex(p.shape[:-1]):
            total = 0.0
            for v in sorted(range(p.shape[-1]), key=lambda v: -p[i][v]):
                keep[i][v] = True
                total += p[i][v]
                if total >= threshold:
                    break
        return keep

    def my_cached_attention(q, k, v, keys, values):
        keys, values = np.concatenate([keys, k], axis=2), np.concatenate([values, v], axis=2)
        B, H, m, C = q.shape
        per, n = H // k.shape[1], keys.shape[2] - m
        y = np.empty_like(q)
        for b, h, i in np.ndindex(B, H, m):
            s = keys[b, h // per, : n + i + 1] @ q[b, h, i] / math.sqrt(C)
            e = np.exp(s - s.max())
            y[b, h, i] = (e / e.sum()) @ values[b, h // per, : n + i + 1]
        return [y, keys, values]


class Chapter15:
    def my_scores(q, keys):
        B, H, m, C = q.shape
        scores = np.empty((B, H, m, keys.shape[2]), q.dtype)
        for h in range(H):
            scores[:, h] = np.einsum("bmc,bnc->bmn", q[:, h], keys[:, h * keys.shape[1] // H]) / math.sqrt(C)
        return scores


class Chapter17:
    def my_heun(f, x, h):
        here = f(x)
        there = f(x + h * here)
        return x + (h / 2) * here + (h / 2) * there


class Chapter20:
    def my_counted(ids, assistant, end):
        counted, speaking = [], False
        for token in ids:
            counted.append(speaking)
            speaking = token == assistant or (speaking and token != end)
        return counted


class Chapter31:
    def my_groups(n, pairs):
        least = list(range(n))
        for _ in range(n):
            for i, j in pairs:
                least[i] = least[j] = min(least[i], least[j])
        return least


class ChapterA2:
    def my_newton_schulz(u):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = u / max(np.sqrt(np.einsum("rc,rc->", u, u)), 1e-15)
        for _ in range(5):
            s = np.einsum("rc,sc->rs", x, x)
            x = a * x + (b * s + c * (s @ s)) @ x
        return x.astype(u.dtype)


class Chapter33:
    def my_tree(parts):
        sums = dict(enumerate(parts))
        while len(sums) > 1:
            sums = {at // 2: sums[at] + sums[at + 1] for at in range(0, len(sums), 2)}
        return sums[0]

    def my_owned(start, stop, rank, size):
        units = (stop - start) // 64
        mine = [u for u in range(units) if units * rank // size <= u < units * (rank + 1) // size]
        return slice(start + 64 * mine[0], start + 64 * mine[-1] + 64) if mine else slice(start, start)

    def my_ring(N):
        steps = []
        for step in range(1, N):
            steps.append([[card, (card + 1) % N, (card - step) % N] for card in reversed(range(N))])
        return tuple(steps)


KERNELS = {
    "my_transpose": """
  __shared__ float turned[TILE][TILE + 1];
  for (int j = threadIdx.y; j < TILE; j += blockDim.y) {
    int row = blockIdx.y * TILE + j, column = blockIdx.x * TILE + threadIdx.x;
    if (row < rows && column < columns) turned[threadIdx.x][j] = x[(size_t)row * columns + column];
  }
  __syncthreads();
  for (int j = threadIdx.y; j < TILE; j += blockDim.y) {
    int row = blockIdx.y * TILE + threadIdx.x, column = blockIdx.x * TILE + j;
    if (row < rows && column < columns) y[(size_t)column * rows + row] = turned[j][threadIdx.x];
  }""",
    "my_sum": """
  __shared__ float of_warp[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int by = 16; by; by >>= 1) sum += __shfl_xor_sync(~0u, sum, by);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < blockDim.x / 32; w++) sum += of_warp[w];
  part[blockIdx.x] = sum;""",
    "my_lse": """
  float l = -3.4e38f;
  for (int v = threadIdx.x; v < V; v += 32) {
    float z = logits[(size_t)blockIdx.x * V + v], most = fmaxf(l, z);
    l = most + log1pf(expf(fminf(l, z) - most));
  }
  for (int by = 1; by < 32; by *= 2) {
    float z = __shfl_xor_sync(~0u, l, by), most = fmaxf(l, z);
    l = most + log1pf(expf(fminf(l, z) - most));
  }
  if (threadIdx.x == 0) lse[blockIdx.x] = l;""",
    "my_adamw": """
  if (isnan(factor[1]) || isinf(factor[1])) return;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float slope = g[i] * factor[0], weight = p[i];
    float first = beta1 * m[i] + (1.0f - beta1) * slope, second = beta2 * v[i] + (1.0f - beta2) * slope * slope;
    float rate = step[0], move = rate * (first * step[1]) / (sqrtf(second * step[2]) + eps);
    p[i] = i < decayed ? weight - rate * decay * weight - move : weight - move;
    m[i] = first;
    v[i] = second;
  }""",
}
