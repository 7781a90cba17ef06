"""The same model in PyTorch, as a competent user would write it; the benchmarks compare NanoEuler with it.

It has one Linear each for q k v, for gate and up, and for all prediction heads; RMSNorm modules;
scaled_dot_product_attention with grouped queries; fused AdamW; and a key/value cache of fixed size for decoding.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import Parameters, head_weights


class Block(nn.Module):
    query_key_norm = False  # only in the race, because such a model is not a Llama

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.config = c
        self.norm1, self.norm2 = nn.RMSNorm(c.dim, c.norm_eps), nn.RMSNorm(c.dim, c.norm_eps)
        self.qkv = nn.Linear(c.dim, c.qkv_dim, bias=False)
        self.out = nn.Linear(c.heads * c.head_dim, c.dim, bias=False)
        self.gate_up = nn.Linear(c.dim, 2 * c.ffn, bias=False)
        self.down = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(self, x, cos, sin, cache=None, start=0):
        """x: [B, T, D]; cos, sin: [T, C]; cache: keys and values [2, B, G, context, C], filled up to `start`."""
        c, (B, T, _) = self.config, x.shape
        qkv = self.qkv(self.norm1(x)).view(B, T, -1, c.head_dim).transpose(1, 2)  # [B, H+2G, T, C]
        q, k, v = qkv.split([c.heads, c.kv_heads, c.kv_heads], dim=1)
        if self.query_key_norm:
            q, k = F.rms_norm(q, (c.head_dim,)), F.rms_norm(k, (c.head_dim,))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache is not None:
            cache[0, :, :, start : start + T], cache[1, :, :, start : start + T] = k, v
            k, v = cache[0, :, :, : start + T], cache[1, :, :, : start + T]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    """RoPE in the half-split convention. x: [B, heads, T, C]."""
    x1, x2 = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-x2, x1], dim=-1) * sin


class Peer(nn.Module):
    def __init__(self, c: ModelConfig, params: Parameters | None = None):
        """With the weights of a NanoEuler model, or with its own."""
        super().__init__()
        self.config = c
        self.embed = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm_final = nn.RMSNorm(c.dim, c.norm_eps)
        self.heads = nn.Linear(c.dim, c.predict * c.vocab_size, bias=False)
        angle = np.outer(np.arange(c.context), c.rope_theta ** (-np.arange(0, c.head_dim, 2) / c.head_dim))
        angle = torch.from_numpy(np.concatenate([angle, angle], axis=1))
        self.register_buffer("cos", angle.cos().float())
        self.register_buffer("sin", angle.sin().float())
        if params is not None:
            self.load(params)

    @torch.no_grad()
    def load(self, params: Parameters) -> None:
        """Our matrices are [in, out], those of Linear [out, in]."""
        mine = dict(self.named_parameters())
        for name, p in params.items():
            target = mine[name.replace("layers.", "blocks.") + ".weight"]
            target.copy_(torch.from_numpy(p if name == "embed" or p.ndim == 1 else p.T))

    def params(self) -> Parameters:
        """Its weights as those of a NanoEuler model: what `load` takes."""
        found, mine = Parameters(self.config), dict(self.named_parameters())
        for name, p in found.items():
            weight = mine[name.replace("layers.", "blocks.") + ".weight"].detach().cpu().numpy()
            p[...] = weight if name == "embed" or p.ndim == 1 else weight.T
        return found

    def forward(self, tokens, caches=None, start=0):
        """The normed residual stream [B, T, D]. With caches, for the positions from `start` on."""
        x = self.embed(tokens)
        time = tokens.shape[1]
        cos, sin = self.cos[start : start + time], self.sin[start : start + time]
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, None if caches is None else caches[i], start)
        return self.norm_final(x)

    def loss(self, tokens, targets, weights):
        """Weighted sum over heads of their mean nats. tokens: [B, T]; targets: [B, T, K]; weights: [K]."""
        return self.score(self(tokens), targets, weights)

    def score(self, x, targets, weights):
        """The loss from the normed residual stream [B, T, D]."""
        logits = self.heads(x)
        nats = F.cross_entropy(logits.view(-1, self.config.vocab_size), targets.view(-1), reduction="none")
        return nats.view(-1, self.config.predict).mean(dim=0) @ weights


class Trainer:
    """Steps of AdamW with the settings of a TrainConfig; `compiled` hands forward and backward to torch.compile.

    precision: "float32", "tf32", or "bfloat16": products and attention by autocast, with the residual stream and the
    weights that AdamW sees in float32, as in `nanoeuler_lib.engine`. mode: of torch.compile.
    """

    def __init__(
        self,
        c: ModelConfig,
        params: Parameters,
        config: TrainConfig,
        compiled: bool,
        device: str = "cpu",
        precision: str = "float32",
        mode: str | None = None,
    ):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        self.device, self.half = device, precision == "bfloat16"
        self.model = Peer(c, params).to(device)
        matrices = [p for name, p in self.model.named_parameters() if p.ndim == 2 and self.by_adamw(name)]
        gains = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": config.decay}, {"params": gains, "weight_decay": 0.0}]
        betas = (config.beta1, config.beta2)
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.adam_eps, fused=True)
        self.clip = config.clip
        self.weights = torch.tensor(head_weights(c, config.later_heads), dtype=torch.float32, device=device)
        self.loss = torch.compile(self.model.loss, mode=mode) if compiled else self.model.loss

    def by_adamw(self, name: str) -> bool:
        """Return whether AdamW updates a matrix."""
        return True

    def step(self, tokens: np.ndarray, targets: np.ndarray, rate: float) -> float:
        """Take one step; return the loss before the step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.zero_grad()
        tokens, targets = (torch.from_numpy(x).to(self.device) for x in (tokens, targets))
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            loss = self.loss(tokens, targets, self.weights)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.move_others(rate)
        return loss.item()

    def move_others(self, rate: float) -> None:
        """Update the parameters that AdamW does not update."""


class Recipe(Trainer):
    """The race's recipe: Muon for the matrices inside blocks, AdamW for the rest (`benchmarks/race.py`).

    muon: else AdamW moves all; rounds: (a, b, c) of each polynomial; move: the root mean square of a step in rates;
    normed_rows: each row of a step gets the same length, over time, as NorMuon's (Li et al. 2025).
    """

    def __init__(
        self, c: ModelConfig, params: Parameters, config: TrainConfig, compiled: bool, device: str, precision: str,
        mode: str | None, *, muon: bool, rounds: tuple, move: float, momentum: float, normed_rows: bool = False,
        query_key_norm: bool = False,
    ):  # fmt: skip
        self.muon = muon
        super().__init__(c, params, config, compiled, device, precision, mode)
        self.rounds, self.size, self.momentum, self.decay = rounds, move, momentum, config.decay
        self.normed_rows, self.alike = normed_rows, {}
        for block in self.model.blocks:
            block.query_key_norm = query_key_norm
        rows = {"qkv": [c.heads * c.head_dim, *[c.kv_heads * c.head_dim] * 2], "gate_up": [c.ffn, c.ffn]}
        for name, p in self.model.named_parameters() if muon else ():
            start = 0
            for height in () if self.by_adamw(name) or p.ndim == 1 else rows.get(name.split(".")[-2], [len(p)]):
                part = p, slice(start, start + height)
                self.alike.setdefault((height, p.shape[1]), []).append(part)
                start += height
        self.momenta = {shape: torch.zeros(len(parts), *shape, device=device) for shape, parts in self.alike.items()}
        self.squares = {
            shape: torch.zeros(len(parts), shape[0], 1, device=device) for shape, parts in self.alike.items()
        }
        self.direction = torch.compile(self._direction, dynamic=False) if compiled else self._direction

    def by_adamw(self, name: str) -> bool:
        return not (self.muon and name.startswith("blocks."))

    @torch.no_grad()
    def begin(self, params: Parameters) -> None:
        """Load these weights, and set all optimiser states to 0."""
        self.model.load(params)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        for moment in (*self.momenta.values(), *self.squares.values()):
            moment.zero_()

    @torch.no_grad()
    def move_others(self, rate: float) -> None:
        """Take a step of Muon, for all matrices of one shape at once."""
        for shape, parts in self.alike.items():
            slopes = [p.grad[rows] for p, rows in parts]
            o = self.direction(slopes, self.momenta[shape], self.squares[shape])
            moved = [p[rows] for p, rows in parts]
            torch._foreach_mul_(moved, 1 - rate * self.decay)
            torch._foreach_add_(moved, list(o.unbind()), alpha=-rate * self.size * max(shape) ** 0.5)

    def _direction(self, slopes, momentum, squares):
        """Return the orthogonal factors [n, R, C] of momentum and gradients; update both moments."""
        g = torch.stack(slopes)
        momentum.mul_(self.momentum).add_(g)
        u = g + self.momentum * momentum
        x = u / torch.linalg.matrix_norm(u, keepdim=True).clamp_min(1e-15)
        x = x.bfloat16() if self.half else x
        tall = x.shape[1] > x.shape[2]
        x = x.mT.contiguous() if tall else x
        for a, b, c in self.rounds:
            gram = torch.bmm(x, x.mT)
            inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            x = torch.baddbmm(x, inner, x, beta=a)
        o = (x.mT if tall else x).float()
        if self.normed_rows:
            squares.lerp_(o.square().mean(dim=2, keepdim=True), 0.05)
            other = o / (squares.sqrt() + 1e-8)
            o = other * (torch.linalg.matrix_norm(o, keepdim=True) / torch.linalg.matrix_norm(other, keepdim=True))
        return o

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @torch.no_grad()
    def losses(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Nats of head 0 at each position [B, T], 0 where the target is -1."""
        tokens, targets = (torch.from_numpy(x).to(self.device) for x in (tokens, targets))
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            logits = F.linear(self.model(tokens), self.model.heads.weight[: self.config.vocab_size])
        nats = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
        return nats.view(targets.shape).cpu().numpy()


class CachedDecoder:
    """One sequence, token by token."""

    def __init__(self, c: ModelConfig, params: Parameters):
        self.model = Peer(c, params).eval()
        self.caches = torch.zeros(c.layers, 2, 1, c.kv_heads, c.context, c.head_dim)
        self.first_head = self.model.heads.weight[: c.vocab_size]
        self.length = 0

    @torch.inference_mode()
    def feed(self, token: int) -> torch.Tensor:
        """Return the logits [V] after one more token."""
        y = self.model(torch.tensor([[token]]), self.caches, self.length)
        self.length += 1
        return F.linear(y[0, 0], self.first_head)


class StaticDecoder:
    """One sequence, token by token, in arrays that never move: compiled and captured as a CUDA graph on a GPU.

    Every token attends over the whole cache, with the positions after its own position masked.
    """

    def __init__(self, c: ModelConfig, params: Parameters, device: str = "cpu", precision: str = "float32"):
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.model = Peer(c, params).to(device, dtype).eval()
        self.caches = torch.zeros(c.layers, 2, 1, c.kv_heads, c.context, c.head_dim, dtype=dtype, device=device)
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.length, self.graph = 0, None
        if device == "cuda":
            self._capture()

    def _advance(self):
        """Return the logits [V] after `token`, at `position`."""
        m, c = self.model, self.model.config
        x, cos, sin = m.embed(self.token), m.cos[self.position], m.sin[self.position]
        seen = (torch.arange(c.context, device=x.device) <= self.position)[None, None, None]
        for block, cache in zip(m.blocks, self.caches, strict=True):
            qkv = block.qkv(block.norm1(x)).view(1, 1, -1, c.head_dim).transpose(1, 2)
            q, k, v = qkv.split([c.heads, c.kv_heads, c.kv_heads], dim=1)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            cache[0].index_copy_(2, self.position, k)
            cache[1].index_copy_(2, self.position, v)
            y = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=seen, enable_gqa=True)
            x = x + block.out(y.transpose(1, 2).reshape(1, 1, -1))
            gate, up = block.gate_up(block.norm2(x)).chunk(2, dim=-1)
            x = x + block.down(F.silu(gate) * up)
        return F.linear(m.norm_final(x)[0, 0], m.heads.weight[: c.vocab_size])

    @torch.inference_mode()
    def _capture(self):
        advance = torch.compile(self._advance, dynamic=False)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                advance()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = advance()

    @torch.inference_mode()
    def feed(self, token: int) -> np.ndarray:
        """Return the logits [V] after one more token, in float32."""
        self.token.fill_(token)
        self.position.fill_(self.length)
        self.length += 1
        if self.graph is None:
            return self._advance().float().numpy()
        self.graph.replay()
        return self.logits.float().cpu().numpy()
