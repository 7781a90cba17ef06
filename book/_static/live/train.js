/* A small model that trains in the page: forward, loss, backward and AdamW, in plain JavaScript.

   This is nanoeuler_lib.model once more, without heads for later tokens; a test holds its gradients and its steps equal to
   the library's. `NanoEuler.training` is a function that needs nothing outside itself: its text becomes a worker, so that
   the page stays awake while the model trains, from a file too.

   The rows of a batch are whole stories, one behind the other: N positions, each story filled up to a multiple of 4 with
   positions that have no target. Sizes are those of model.js; all widths are multiples of 4, for `product`. */

"use strict";

NanoEuler.training = () => {
  /* ---- Matrices: element (i, j) of { data, at, row, col } is data[at + i * row + j * col] ---- */

  const matrix = (data, row, at = 0) => ({ data, at, row, col: 1 });
  const transposed = ({ data, at, row, col }) => ({ data, at, row: col, col: row });
  const from = (m, i, j = 0) => ({ ...m, at: m.at + i * m.row + j * m.col }); // without its first i rows and j columns

  let left = new Float64Array(0), right = new Float64Array(0);

  /* c = a b for a [M, K], b [K, N], or c += a b; M and N are multiples of 4. Sixteen sums at a time stay in registers, so
     eight numbers are read for sixteen products. They are first laid out in the order of reading, and in the double
     precision in which JavaScript computes. */
  function product(c, a, b, M, K, N, add = false) {
    if (left.length < 4 * K) left = new Float64Array(4 * K);
    if (right.length < K * N) right = new Float64Array(K * N);
    const A = a.data, B = b.data, C = c.data, X = left, Y = right, old = add ? 1 : 0;
    for (let j = 0, y = 0; j < N; j += 4) {
      for (let k = 0, z = b.at + j * b.col; k < K; k++, z += b.row, y += 4) {
        Y[y] = B[z]; Y[y + 1] = B[z + b.col]; Y[y + 2] = B[z + 2 * b.col]; Y[y + 3] = B[z + 3 * b.col];
      }
    }
    for (let i = 0; i < M; i += 4) {
      for (let x = 0, z = a.at + i * a.row; x < 4 * K; x += 4, z += a.col) {
        X[x] = A[z]; X[x + 1] = A[z + a.row]; X[x + 2] = A[z + 2 * a.row]; X[x + 3] = A[z + 3 * a.row];
      }
      for (let j = 0, y = 0; j < N; j += 4) {
        let p00 = 0, p01 = 0, p02 = 0, p03 = 0, p10 = 0, p11 = 0, p12 = 0, p13 = 0;
        let p20 = 0, p21 = 0, p22 = 0, p23 = 0, p30 = 0, p31 = 0, p32 = 0, p33 = 0;
        for (let x = 0; x < 4 * K; x += 4, y += 4) {
          const x0 = X[x], x1 = X[x + 1], x2 = X[x + 2], x3 = X[x + 3];
          const y0 = Y[y], y1 = Y[y + 1], y2 = Y[y + 2], y3 = Y[y + 3];
          p00 += x0 * y0; p01 += x0 * y1; p02 += x0 * y2; p03 += x0 * y3;
          p10 += x1 * y0; p11 += x1 * y1; p12 += x1 * y2; p13 += x1 * y3;
          p20 += x2 * y0; p21 += x2 * y1; p22 += x2 * y2; p23 += x2 * y3;
          p30 += x3 * y0; p31 += x3 * y1; p32 += x3 * y2; p33 += x3 * y3;
        }
        const sums = (z, s0, s1, s2, s3) => {
          C[z] = old * C[z] + s0; C[z + 1] = old * C[z + 1] + s1; C[z + 2] = old * C[z + 2] + s2; C[z + 3] = old * C[z + 3] + s3;
        };
        const z = c.at + i * c.row + j;
        sums(z, p00, p01, p02, p03);
        sums(z + c.row, p10, p11, p12, p13);
        sums(z + 2 * c.row, p20, p21, p22, p23);
        sums(z + 3 * c.row, p30, p31, p32, p33);
      }
    }
  }

  /* ---- The layers that work on each position alone ---- */

  /* y = x W for N positions; x [N, I], W [I, O]. */
  function linear(y, x, w, N, I, O) {
    product(matrix(y, O), matrix(x, I), matrix(w, O), N, I, O);
  }

  function linearBack(dx, dw, dy, x, w, N, I, O) {
    product(matrix(dx, I), matrix(dy, O), transposed(matrix(w, O)), N, O, I);
    product(matrix(dw, O), transposed(matrix(x, I)), matrix(dy, O), I, N, O);
  }

  function rmsnorm(y, scale, x, gain, N, D, eps) {
    for (let n = 0, at = 0; n < N; n++, at += D) {
      let squares = 0;
      for (let d = 0; d < D; d++) squares += x[at + d] * x[at + d];
      const s = (scale[n] = 1 / Math.sqrt(squares / D + eps));
      for (let d = 0; d < D; d++) y[at + d] = x[at + d] * s * gain[d];
    }
  }

  /* Adds to dx: what the norm reads also goes on in the stream. factor: of the mean term, 0 to forget it. */
  function rmsnormBack(dx, dgain, dy, x, scale, gain, N, D, factor = 1) {
    dgain.fill(0);
    for (let n = 0, at = 0; n < N; n++, at += D) {
      const s = scale[n];
      let along = 0;
      for (let d = 0; d < D; d++) {
        dgain[d] += dy[at + d] * x[at + d] * s;
        along += dy[at + d] * gain[d] * x[at + d];
      }
      along *= (factor * s * s * s) / D;
      for (let d = 0; d < D; d++) dx[at + d] += dy[at + d] * gain[d] * s - x[at + d] * along;
    }
  }

  function swiglu(hidden, gateUp, N, F) {
    for (let n = 0; n < N; n++) {
      for (let f = 0, at = 2 * n * F; f < F; f++, at++) {
        hidden[n * F + f] = (gateUp[at] / (1 + Math.exp(-gateUp[at]))) * gateUp[at + F];
      }
    }
  }

  function swigluBack(dgateUp, dhidden, gateUp, N, F) {
    for (let n = 0; n < N; n++) {
      for (let f = 0, at = 2 * n * F; f < F; f++, at++) {
        const gate = gateUp[at], d = dhidden[n * F + f];
        const sigmoid = 1 / (1 + Math.exp(-gate));
        dgateUp[at] = d * gateUp[at + F] * sigmoid * (1 + gate * (1 - sigmoid));
        dgateUp[at + F] = d * gate * sigmoid;
      }
    }
  }

  /* Nats of all targets together; logits become the gradient of their mean. Target -1: none. */
  function crossEntropy(logits, targets, N, V, valid) {
    let nats = 0;
    for (let n = 0, at = 0; n < N; n++, at += V) {
      const target = targets[n];
      if (target < 0) {
        logits.fill(0, at, at + V);
        continue;
      }
      let most = -Infinity, sum = 0;
      for (let v = 0; v < V; v++) most = Math.max(most, logits[at + v]);
      nats += most - logits[at + target];
      for (let v = 0; v < V; v++) sum += logits[at + v] = Math.exp(logits[at + v] - most);
      nats += Math.log(sum);
      const factor = 1 / (sum * valid);
      for (let v = 0; v < V; v++) logits[at + v] *= factor;
      logits[at + target] -= 1 / valid;
    }
    return nats;
  }

  /* ---- The model ---- */

  const PARTS = ["norm1", "qkv", "out", "norm2", "gateUp", "down"];

  class Model {
    /* config: as the library's, one head; parameters: Float32Array in the library's order. */
    constructor(config, parameters) {
      const { dim: D, heads: H, kv_heads: G, layers, ffn: F, vocab_size: V } = config;
      this.config = config;
      this.C = D / H;
      this.Q = D + 2 * G * this.C; // width of queries, keys and values together
      const sizes = [V * D, ...Array(layers).fill([D, D * this.Q, D * D, D, D * 2 * F, F * D]).flat(), D, D * V];
      const size = sizes.reduce((a, b) => a + b);
      if (parameters.length !== size) throw new RangeError(`there are ${parameters.length} parameters, expected ${size}`);
      const tensors = (flat) => {
        let at = 0;
        const [embed, ...rest] = sizes.map((length) => flat.subarray(at, (at += length)));
        const layer = (i) => Object.fromEntries(PARTS.map((name, j) => [name, rest[6 * i + j]]));
        return { flat, embed, layers: Array.from({ length: layers }, (_, i) => layer(i)), norm: rest.at(-2), heads: rest.at(-1) };
      };
      this.params = tensors(parameters);
      this.grads = tensors(new Float32Array(size));
      this.decays = new Uint8Array(size).fill(1); // of matrices, and not of gains
      const { norm, layers: inner } = tensors(this.decays);
      for (const gain of [norm, ...inner.flatMap((part) => [part.norm1, part.norm2])]) gain.fill(0);
      this.moments = [new Float32Array(size), new Float32Array(size)];
      this.steps = 0;
      this.broken = "";
      this.room = 0;
    }

    /* Buffers for N positions and P pairs of positions in each head. */
    reserve(N, P) {
      if (this.room >= N && this.pairs >= P) return;
      const { dim: D, heads: H, layers, ffn: F, vocab_size: V } = this.config;
      const rows = (width) => new Float32Array(N * width);
      Object.assign(this, { room: N, pairs: P, x: rows(D), y: rows(D), delta: rows(D), scale: rows(1), logits: rows(V) });
      Object.assign(this, { dx: rows(D), dy: rows(D), dattended: rows(D), dqkv: rows(this.Q), dhidden: rows(F), dgateUp: rows(2 * F) });
      this.saved = Array.from({ length: layers }, () => ({
        x1: rows(D), y1: rows(D), scale1: rows(1), qkv: rows(this.Q), probs: new Float32Array(H * P), attended: rows(D),
        x2: rows(D), y2: rows(D), scale2: rows(1), gateUp: rows(2 * F), hidden: rows(F),
      }));
      this.dprobs = new Float32Array(P);
    }

    /* Logits of all positions; what the backward pass reads is saved. */
    forward({ tokens, rows, pairs }) {
      const { dim: D, ffn: F, vocab_size: V, norm_eps: eps } = this.config;
      const N = tokens.length;
      const keep = this.broken === "residual" ? 0 : 1;
      this.reserve(N, pairs);
      let stream = this.x; // [N, D]
      for (let n = 0; n < N; n++) stream.set(this.params.embed.subarray(tokens[n] * D, (tokens[n] + 1) * D), n * D);
      this.layers((w, a) => {
        a.x1.set(stream);
        rmsnorm(a.y1, a.scale1, a.x1, w.norm1, N, D, eps);
        linear(a.qkv, a.y1, w.qkv, N, D, this.Q);
        this.turn(a.qkv, rows, 1);
        for (const row of rows) this.attend(a, row, pairs);
        linear(this.delta, a.attended, w.out, N, D, D);
        for (let i = 0; i < N * D; i++) a.x2[i] = keep * a.x1[i] + this.delta[i];
        rmsnorm(a.y2, a.scale2, a.x2, w.norm2, N, D, eps);
        linear(a.gateUp, a.y2, w.gateUp, N, D, 2 * F);
        swiglu(a.hidden, a.gateUp, N, F);
        linear(this.delta, a.hidden, w.down, N, F, D);
        for (let i = 0; i < N * D; i++) this.x[i] = keep * a.x2[i] + this.delta[i];
        stream = this.x;
      });
      rmsnorm(this.y, this.scale, this.x, this.params.norm, N, D, eps);
      linear(this.logits, this.y, this.params.heads, N, D, V);
    }

    layers(each, order = [...this.params.layers.keys()]) {
      for (const i of order) each(this.params.layers[i], this.saved[i], this.grads.layers[i]);
    }

    /* RoPE on queries and keys, in place: each pair turns by its angle, or back. */
    turn(qkv, rows, direction) {
      const { heads: H, kv_heads: G, context, rope_theta } = this.config;
      const half = this.C / 2;
      this.angles ??= Float32Array.from({ length: context * half }, (_, i) => Math.floor(i / half) * rope_theta ** (-(i % half) / half));
      for (const { start, length } of rows) {
        for (let t = 0; t < length; t++) {
          for (let j = 0; j < half; j++) {
            const cos = Math.cos(this.angles[t * half + j]), sin = direction * Math.sin(this.angles[t * half + j]);
            for (let h = 0, at = (start + t) * this.Q + j; h < H + G; h++, at += this.C) {
              const a = qkv[at], b = qkv[at + half];
              qkv[at] = a * cos - b * sin;
              qkv[at + half] = a * sin + b * cos;
            }
          }
        }
      }
    }

    /* The matrices of one head in one row: of the packed queries, keys and values, and of the probabilities. */
    views(packed, probs, { start, length, before }, pairs, h) {
      const { heads: H, kv_heads: G } = this.config;
      const all = from(matrix(packed, this.Q), start);
      const group = Math.floor((h * G) / H);
      return [h, H + group, H + G + group].map((i) => from(all, 0, i * this.C)).concat(matrix(probs, length, h * pairs + before));
    }

    /* Causal attention in one row, sixteen queries at a time; later keys are not read. */
    attend(a, row, pairs) {
      const { heads: H, dim: D } = this.config;
      for (let h = 0; h < H; h++) {
        const [q, k, v, p] = this.views(a.qkv, a.probs, row, pairs, h);
        const result = from(matrix(a.attended, D), row.start, h * this.C);
        this.blocks(row.length, (t, R, reach) => {
          product(from(p, t), from(q, t), transposed(k), R, this.C, reach);
          for (let i = t; i < t + R; i++) softmax(a.probs, p.at + i * row.length, this.seen(i, row.length), row.length, 1 / Math.sqrt(this.C));
          product(from(result, t), from(p, t), v, R, reach, this.C);
        });
      }
    }

    attendBack(a, row, pairs) {
      const { heads: H, dim: D } = this.config;
      const L = row.length;
      for (let h = 0; h < H; h++) {
        const [q, k, v, p] = this.views(a.qkv, a.probs, row, pairs, h);
        const [dq, dk, dv] = this.views(this.dqkv, this.dprobs, row, pairs, h);
        const dp = matrix(this.dprobs, L);
        const dresult = from(matrix(this.dattended, D), row.start, h * this.C);
        this.blocks(L, (t, R, reach) => {
          product(from(dp, t), from(dresult, t), transposed(v), R, this.C, reach);
          for (let i = t; i < t + R; i++) softmaxBack(this.dprobs, i * L, a.probs, p.at + i * L, this.seen(i, L), L, 1 / Math.sqrt(this.C));
          product(from(dq, t), from(dp, t), k, R, reach, this.C, true);
        });
        this.blocks(L, (t, R) => {
          const first = Math.max(0, t - (this.broken === "ahead" ? 4 : 0)); // the first query that looks at these keys
          product(from(dk, t), transposed(from(dp, first, t)), from(q, first), R, L - first, this.C, true);
          product(from(dv, t), transposed(from(p, first, t)), from(dresult, first), R, L - first, this.C, true);
        });
      }
    }

    /* How many keys query i looks at. */
    seen(i, length) {
      return Math.min(length, i + (this.broken === "ahead" ? 2 : 1));
    }

    /* Blocks of queries: each begins at t, has R of them, and they look at no more than the first `reach` keys. */
    blocks(length, each) {
      for (let t = 0; t < length; t += 16) {
        const R = Math.min(16, length - t);
        each(t, R, Math.min(length, t + R + (this.broken === "ahead" ? 4 : 0)));
      }
    }

    /* After `forward`: fills `grads` with the gradient of the mean loss; returns the nats of all targets together. */
    backward({ tokens, targets, rows, pairs, valid }) {
      const { dim: D, ffn: F, vocab_size: V } = this.config;
      const N = tokens.length, { params, grads, dx, dy } = this;
      const keep = this.broken === "residual" ? 0 : 1, mean = this.broken === "mean" ? 0 : 1;
      const nats = crossEntropy(this.logits, targets, N, V, valid);
      linearBack(dy, grads.heads, this.logits, this.y, params.heads, N, D, V);
      dx.fill(0);
      rmsnormBack(dx, grads.norm, dy, this.x, this.scale, params.norm, N, D, mean);
      this.layers((w, a, dw) => {
        linearBack(this.dhidden, dw.down, dx, a.hidden, w.down, N, F, D);
        if (this.broken === "sign") for (let i = 0; i < N * F; i++) this.dhidden[i] *= -1;
        swigluBack(this.dgateUp, this.dhidden, a.gateUp, N, F);
        linearBack(dy, dw.gateUp, this.dgateUp, a.y2, w.gateUp, N, D, 2 * F);
        if (!keep) dx.fill(0);
        rmsnormBack(dx, dw.norm2, dy, a.x2, a.scale2, w.norm2, N, D, mean);
        linearBack(this.dattended, dw.out, dx, a.attended, w.out, N, D, D);
        this.dqkv.fill(0);
        for (const row of rows) this.attendBack(a, row, pairs);
        this.turn(this.dqkv, rows, this.broken === "rope" ? 1 : -1);
        linearBack(dy, dw.qkv, this.dqkv, a.y1, w.qkv, N, D, this.Q);
        if (!keep) dx.fill(0);
        rmsnormBack(dx, dw.norm1, dy, a.x1, a.scale1, w.norm1, N, D, mean);
      }, [...params.layers.keys()].reverse());
      grads.embed.fill(0);
      for (let n = 0; n < N; n++) for (let d = 0; d < D; d++) grads.embed[tokens[n] * D + d] += dx[n * D + d];
      return nats;
    }

    /* The nats of all targets, and nothing saved for a step. */
    loss(batch) {
      this.forward(batch);
      return crossEntropy(this.logits, batch.targets, batch.tokens.length, this.config.vocab_size, batch.valid);
    }

    /* One step of AdamW behind a clipped gradient, as the library takes it by default. Returns the nats before it. */
    step(batch, rate, { beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, clip = 1 } = {}) {
      this.forward(batch);
      const nats = this.backward(batch);
      const g = this.grads.flat, p = this.params.flat, [m, v] = this.moments;
      let squares = 0;
      for (let i = 0; i < g.length; i++) squares += g[i] * g[i];
      const factor = Math.min(1, clip / Math.sqrt(squares));
      this.steps += 1;
      const ahead = rate / (1 - beta1 ** this.steps), spread = 1 / (1 - beta2 ** this.steps);
      for (let i = 0; i < g.length; i++) {
        const d = g[i] * factor;
        m[i] += (1 - beta1) * (d - m[i]);
        v[i] += (1 - beta2) * (d * d - v[i]);
        p[i] -= rate * decay * this.decays[i] * p[i] + (ahead * m[i]) / (Math.sqrt(v[i] * spread) + eps);
      }
      return nats;
    }
  }

  /* The first `seen` of a row of scores become probabilities, the others 0. */
  function softmax(scores, at, seen, length, factor) {
    let most = -Infinity, sum = 0;
    for (let i = at; i < at + seen; i++) most = Math.max(most, scores[i]);
    for (let i = at; i < at + seen; i++) sum += scores[i] = Math.exp((scores[i] - most) * factor);
    for (let i = at; i < at + seen; i++) scores[i] /= sum;
    scores.fill(0, at + seen, at + length);
  }

  /* The gradient of a row of probabilities becomes that of its scores. */
  function softmaxBack(dprobs, at, probs, start, seen, length, factor) {
    let along = 0;
    for (let i = 0; i < seen; i++) along += dprobs[at + i] * probs[start + i];
    for (let i = 0; i < seen; i++) dprobs[at + i] = probs[start + i] * (dprobs[at + i] - along) * factor;
    dprobs.fill(0, at + seen, at + length);
  }

  /* ---- Batches ---- */

  /* Whole stories, each a list of ids between two end-of-text tokens, as positions and their targets. */
  function batchOf(stories) {
    const rows = [];
    let N = 0, pairs = 0;
    for (const ids of stories) {
      const length = 4 * Math.ceil((ids.length - 1) / 4);
      rows.push({ start: N, length, before: pairs });
      N += length;
      pairs += length * length;
    }
    const tokens = new Int32Array(N), targets = new Int32Array(N).fill(-1);
    stories.forEach((ids, i) => {
      tokens.set(ids.slice(0, -1), rows[i].start);
      targets.set(ids.slice(1), rows[i].start);
    });
    return { tokens, targets, rows, pairs, valid: stories.reduce((sum, ids) => sum + ids.length - 1, 0) };
  }

  /* The stories of a stream of ids in which an end-of-text token stands before each and behind the last. */
  function storiesOf(ids, end) {
    const ends = [];
    ids.forEach((id, i) => id === end && ends.push(i));
    return ends.slice(1).map((to, i) => ids.subarray(ends[i], to + 1));
  }

  /* A normal number for each parameter, from a seed (mulberry32, Box and Muller), as the library's `init` scales them. */
  function init(config, seed, std = 0.02) {
    const { dim: D, layers, ffn: F, vocab_size: V, heads: H, kv_heads: G } = config;
    const Q = D + (2 * G * D) / H;
    const uniform = () => {
      let t = (seed = (seed + 0x6d2b79f5) | 0);
      t = Math.imul(t ^ (t >>> 15), t | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
    const normal = (n, std) => Float32Array.from({ length: n }, () => std * Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()));
    const small = std / Math.sqrt(2 * layers); // for what writes to the stream
    const ones = () => new Float32Array(D).fill(1);
    const layer = () => [ones(), normal(D * Q, std), normal(D * D, small), ones(), normal(2 * D * F, std), normal(F * D, small)];
    const parts = [normal(V * D, std), ...Array.from({ length: layers }, layer).flat(), ones(), normal(D * V, std)];
    return Float32Array.from(parts.flatMap((part) => [...part]));
  }

  /* ---- The worker ---- */

  const WARMUP = 20; // steps in which the rate grows to the reader's
  const MEASURED = 20000; // tokens from one look at the held-out stories to the next
  const ROWS = 6; // stories in a batch
  const FALL = 0.95; // share of the rate that is gone when all stories are read

  /* Answer messages: { config, parameters, stories, held, lengths } begins a run, { rate, broken, running } changes it,
     { weights } asks for its parameters. All stories but the first `held` are read once; lengths: bytes of each token. */
  function serve(scope) {
    let run = null, timer = null;

    function begin({ config, parameters, stories, held, lengths }) {
      const all = storiesOf(stories, stories[0]);
      const model = new Model(config, parameters);
      run = { model, lengths, test: batchOf(all.slice(0, held)), rest: all.slice(held), all: stories.length, tokens: 0, next: 0, seconds: 0 };
    }

    const bits = (nats, { targets }) => nats / Math.LN2 / targets.reduce((sum, id) => sum + (id < 0 ? 0 : run.lengths[id]), 0);
    const said = (what) => scope.postMessage({ tokens: run.tokens, seconds: run.seconds, ...what });

    function measure() {
      said({ held: bits(run.model.loss(run.test), run.test) });
      run.next = run.tokens + MEASURED;
    }

    function step() {
      const began = performance.now();
      if (run.tokens >= run.next) measure();
      const batch = batchOf(run.rest.splice(0, ROWS));
      const left = 1 - (FALL * run.tokens) / run.all;
      const nats = run.model.step(batch, run.rate * left * Math.min(1, (run.model.steps + 1) / WARMUP));
      run.tokens += batch.valid;
      run.seconds += (performance.now() - began) / 1000;
      said({ batch: bits(nats, batch) });
      if (run.rest.length < ROWS) {
        measure();
        said({ over: true });
      } else timer = setTimeout(step); // messages are read before it
    }

    scope.onmessage = ({ data }) => {
      clearTimeout(timer);
      if (data.config) begin(data);
      if ("rate" in data) Object.assign(run, { rate: data.rate, running: data.running });
      if ("broken" in data) run.model.broken = data.broken;
      if (data.weights) said({ weights: run.model.params.flat.slice() });
      if (run.running && run.rest.length >= ROWS) timer = setTimeout(step);
    };
  }

  return { Model, batchOf, storiesOf, init, serve };
};
