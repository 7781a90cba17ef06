/* The book's small model in plain JavaScript: a text becomes tokens, tokens become logits, logits become the next token.

   This is nanoeuler_lib once more, for one sequence in a browser and without its speed. In the order of the chapters:
   `Tokenizer` (01), `Decoder` (06 to 10; its cache 14), `filteredProbs` and `pick` (14), `Source` (02); `Reading` puts them
   together. A test in a real browser holds the tokens equal to the library's, and the logits to within 1e-4.

   Names of sizes: D model width, H query heads, G key/value heads, C head width, F feed-forward width, V vocabulary,
   T tokens seen so far. A matrix [I, O] is a Float32Array, row after row. */

"use strict";

const NanoEuler = {}; // the one name that the page's scripts share

/* ---- Tokens ------------------------------------------------------------------------------------------------- */

NanoEuler.Tokenizer = class {
  /* GPT-2's pattern. Characters are letters or numbers as the browser's Unicode tables say. */
  static WORDS =
    /'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

  /* byteOrder: the byte of each of the ids 0 to 255; merges: [a, b] of each id from 256 on; specials: names, behind them. */
  constructor({ byteOrder, merges, specials }) {
    this.bytes = byteOrder.map((byte) => [byte]); // of each token
    this.idOfByte = new Map(byteOrder.map((byte, id) => [byte, id]));
    this.merged = new Map(); // "a b" -> the id that the pair becomes; the smaller, the earlier
    for (const [a, b] of merges) {
      this.merged.set(`${a} ${b}`, this.bytes.length);
      this.bytes.push([...this.bytes[a], ...this.bytes[b]]);
    }
    this.special = new Map(specials.map((name, i) => [name, this.bytes.length + i]));
    this.size = this.bytes.length + specials.length;
  }

  /* The ids of a text. What looks like a special token is ordinary text; half a surrogate pair becomes U+FFFD. */
  encode(text) {
    return (text.match(NanoEuler.Tokenizer.WORDS) ?? []).flatMap((word) => this.encodeWord(word));
  }

  /* Merge the earliest pair of the vocabulary, wherever it stands, until none is left. */
  encodeWord(word) {
    let ids = Array.from(new TextEncoder().encode(word), (byte) => this.idOfByte.get(byte));
    for (;;) {
      const turns = ids.slice(1).map((id, i) => this.merged.get(`${ids[i]} ${id}`) ?? Infinity);
      const first = turns.reduce((a, b) => Math.min(a, b), Infinity);
      if (first === Infinity) return ids;
      const next = [];
      for (let i = 0; i < ids.length; i++) next.push(turns[i] === first ? (i++, first) : ids[i]);
      ids = next;
    }
  }

  /* The text of ids; special tokens have none, and what is not UTF-8 becomes U+FFFD. */
  decode(ids) {
    return new TextDecoder().decode(new Uint8Array(ids.flatMap((id) => this.bytes[id] ?? [])));
  }
};

/* ---- The model ---------------------------------------------------------------------------------------------- */

/* One token after another. Keys and values of the tokens seen are kept, so that one more costs one position. */
NanoEuler.Decoder = class {
  /* config: the checkpoint's; tensors: name -> Float32Array, the matrices [in, out]; looks: whether `attention` is asked. */
  constructor({ config, tensors, looks = true }) {
    const { dim, heads, kv_heads: G, context, ffn } = config;
    const C = dim / heads;
    this.config = config;
    this.looks = looks;
    this.length = 0; // T; set it back to n to forget all but the first n tokens
    this.embed = tensors["embed"];
    this.normFinal = tensors["norm_final"];
    this.heads = tensors["heads"]; // only head 0: [D, V]
    this.layers = Array.from({ length: config.layers }, (_, i) => ({
      norm1: tensors[`layers.${i}.norm1`],
      qkv: tensors[`layers.${i}.qkv`],
      out: tensors[`layers.${i}.out`],
      norm2: tensors[`layers.${i}.norm2`],
      gateUp: tensors[`layers.${i}.gate_up`],
      down: tensors[`layers.${i}.down`],
      keys: new Float32Array(context * G * C), // [context, G, C]
      values: new Float32Array(context * G * C),
      probs: new Float32Array(looks ? heads * context * context : context), // [H, context, context]: row t says where token t looked
    }));
    this.turns = NanoEuler.ropeTable(context, C, config.rope_theta);
    this.qkv = new Float32Array((heads + 2 * G) * C);
    this.gateUp = new Float32Array(2 * ffn);
    this.x = new Float32Array(dim); // the residual stream of the newest token
    this.y = new Float32Array(dim); // what a layer reads of it
    this.delta = new Float32Array(dim); // what a layer adds to it
    this.attended = new Float32Array(dim);
    this.hidden = new Float32Array(ffn);
  }

  /* Append a token and return the logits [V] for the one that comes next. */
  feed(token) {
    const { dim, context, vocab_size: V, norm_eps: eps } = this.config;
    if (this.length === context) throw new RangeError(`context is ${context}: there is no room for another token`);
    if (!(token >= 0 && token < V)) throw new RangeError(`token is ${token}, expected 0 to ${V - 1}`);
    const { x, y, delta } = this;
    x.set(this.embed.subarray(token * dim, (token + 1) * dim));
    for (const layer of this.layers) {
      NanoEuler.rmsnorm(y, x, layer.norm1, eps);
      this.attend(layer, y);
      NanoEuler.product(delta, this.attended, layer.out);
      for (let i = 0; i < dim; i++) x[i] += delta[i];
      NanoEuler.rmsnorm(y, x, layer.norm2, eps);
      NanoEuler.product(this.gateUp, y, layer.gateUp);
      NanoEuler.swiglu(this.hidden, this.gateUp);
      NanoEuler.product(delta, this.hidden, layer.down);
      for (let i = 0; i < dim; i++) x[i] += delta[i];
    }
    this.length += 1;
    NanoEuler.rmsnorm(y, x, this.normFinal, eps);
    return NanoEuler.product(new Float32Array(V), y, this.heads);
  }

  /* Causal attention of the newest token, grouped queries: each key/value head serves H/G query heads. */
  attend(layer, y) {
    const { heads: H, kv_heads: G, dim, context } = this.config;
    const C = dim / H;
    const position = this.length;
    NanoEuler.product(this.qkv, y, layer.qkv);
    for (let h = 0; h < H + G; h++) NanoEuler.turn(this.qkv.subarray(h * C, (h + 1) * C), this.turns[position]);
    layer.keys.set(this.qkv.subarray(H * C, (H + G) * C), position * G * C);
    layer.values.set(this.qkv.subarray((H + G) * C), position * G * C);
    for (let h = 0; h < H; h++) {
      const group = Math.floor(h / (H / G)) * C; // where its key/value head begins in a row of the cache
      const row = this.looks ? (h * context + position) * context : 0;
      const probs = layer.probs.subarray(row, row + position + 1);
      const query = this.qkv.subarray(h * C, (h + 1) * C);
      for (let t = 0; t <= position; t++) {
        let score = 0;
        for (let c = 0; c < C; c++) score += query[c] * layer.keys[t * G * C + group + c];
        probs[t] = score / Math.sqrt(C);
      }
      NanoEuler.softmax(probs);
      const result = this.attended.subarray(h * C, (h + 1) * C).fill(0);
      for (let t = 0; t <= position; t++) {
        for (let c = 0; c < C; c++) result[c] += probs[t] * layer.values[t * G * C + group + c];
      }
    }
  }

  /* Where token `from` looked, [from + 1] weights that sum to 1. head: null for the mean of the layer's heads. */
  attention(layer, head, from) {
    const { heads: H, context } = this.config;
    const found = new Float32Array(from + 1);
    const chosen = head === null ? [...Array(H).keys()] : [head];
    for (const h of chosen) {
      for (let t = 0; t <= from; t++) {
        found[t] += this.layers[layer].probs[(h * context + from) * context + t] / chosen.length;
      }
    }
    return found;
  }
};

/* y = x W for x [I], W [I, O], y [O]. Row by row, so that memory is read in the order in which it lies. */
NanoEuler.product = (y, x, w) => {
  const O = y.length;
  y.fill(0);
  for (let i = 0, at = 0; i < x.length; i++, at += O) {
    const factor = x[i];
    for (let o = 0; o < O; o++) y[o] += factor * w[at + o];
  }
  return y;
};

/* y = x / rms(x) * gain. */
NanoEuler.rmsnorm = (y, x, gain, eps) => {
  let squares = 0;
  for (const value of x) squares += value * value;
  const scale = 1 / Math.sqrt(squares / x.length + eps);
  for (let i = 0; i < x.length; i++) y[i] = x[i] * scale * gain[i];
};

/* hidden = gate * sigmoid(gate) * up; the gate is the first half of gateUp. */
NanoEuler.swiglu = (hidden, gateUp) => {
  const F = hidden.length;
  for (let f = 0; f < F; f++) hidden[f] = (gateUp[f] / (1 + Math.exp(-gateUp[f]))) * gateUp[F + f];
};

/* Scores become probabilities, in place. */
NanoEuler.softmax = (scores) => {
  const most = scores.reduce((a, b) => Math.max(a, b));
  let sum = 0;
  for (let i = 0; i < scores.length; i++) sum += scores[i] = Math.exp(scores[i] - most);
  for (let i = 0; i < scores.length; i++) scores[i] /= sum;
};

/* [cosine, sine] of the angle by which RoPE turns pair j at each position: position * theta^(-2j/C). */
NanoEuler.ropeTable = (positions, C, theta) =>
  Array.from({ length: positions }, (_, t) =>
    Array.from({ length: C / 2 }, (_, j) => [Math.cos(t * theta ** ((-2 * j) / C)), Math.sin(t * theta ** ((-2 * j) / C))]),
  );

/* Turn the pairs (v[j], v[j + C/2]) of a query or a key, in place. */
NanoEuler.turn = (v, angles) => {
  const half = v.length / 2;
  angles.forEach(([cos, sin], j) => {
    const [a, b] = [v[j], v[j + half]];
    v[j] = a * cos - b * sin;
    v[j + half] = a * sin + b * cos;
  });
};

/* ---- The next token ----------------------------------------------------------------------------------------- */

/* The tokens that logits leave to be drawn, the most likely first, and their probabilities.
   temperature 0 takes the most likely; topK: only the k most likely (0: all); topP: only the most likely whose
   probabilities together reach p; minP: only those at least so many times as likely as the most likely. */
NanoEuler.filteredProbs = (logits, { temperature = 1, topK = 0, topP = 1, minP = 0 } = {}) => {
  let tokens = [...logits.keys()].sort((a, b) => logits[b] - logits[a]);
  if (temperature === 0) return { tokens: tokens.slice(0, 1), probs: [1] };
  if (topK > 0) tokens = tokens.slice(0, topK);
  const probs = normalised(tokens.map((token) => Math.exp((logits[token] - logits[tokens[0]]) / temperature)));
  let kept = tokens.length;
  if (topP < 1) {
    let sum = 0;
    kept = 1 + probs.filter((p) => (sum += p) < topP).length; // the first ones that reach topP
  }
  if (minP > 0) kept = Math.min(kept, probs.filter((p) => p >= minP * probs[0]).length);
  return { tokens: tokens.slice(0, kept), probs: normalised(probs.slice(0, kept)) };

  function normalised(weights) {
    const sum = weights.reduce((a, b) => a + b, 0);
    return weights.map((weight) => weight / sum);
  }
};

/* One of the tokens, drawn with these probabilities by a number r, uniform in [0, 1). */
NanoEuler.pick = ({ tokens, probs }, r) => {
  let sum = 0;
  const at = probs.findIndex((p) => (sum += p) > r);
  return tokens[at < 0 ? tokens.length - 1 : at]; // rounding may leave the last sum below 1
};

/* ---- What comes with the page ------------------------------------------------------------------------------- */

/* What the true source of the town's stories says of the next token, for the stories that were looked up when the book
   was built. Each has ids, without an end-of-text token, and next: for each of their beginnings [id, probability, ...]. */
NanoEuler.Source = class {
  constructor(stories) {
    this.stories = stories;
  }

  /* The story that begins with these ids; undefined if none does. */
  story(ids) {
    return this.stories.find((story) => ids.every((id, i) => id === story.ids[i]));
  }

  /* Map of each token that may follow to its probability; undefined if no story begins so. */
  next(ids) {
    const row = this.story(ids)?.next[ids.length];
    return row && new Map(row.flatMap((id, i) => (i % 2 ? [] : [[id, row[i + 1]]])));
  }
};

/* A text as the model reads it: `logits` for the token that comes next, kept as the text grows or changes.
   An end-of-text token stands before it, since a story's beginning is what the model saw first in training. */
NanoEuler.Reading = class {
  constructor({ tokenizer, decoder, source }) {
    Object.assign(this, { tokenizer, decoder, source, ids: [], window: [] });
    this.end = tokenizer.special.get("<|endoftext|>");
  }

  /* Read ids. What the last text began with too is not read again; of a text longer than the context, the end is read:
     as when it grew token by token, and the later half was read again whenever the context was full. */
  read(ids) {
    const all = [this.end, ...ids];
    const { context } = this.decoder.config;
    const excess = Math.max(0, all.length - context);
    const window = all.slice((context / 2) * Math.ceil(excess / (context / 2)));
    let common = 0;
    while (common < window.length - 1 && window[common] === this.window[common]) common++;
    this.decoder.length = common;
    for (const token of window.slice(common)) this.logits = this.decoder.feed(token);
    Object.assign(this, { ids, window });
  }

  /* Probabilities of all tokens, [V] by id, as `options` of `filteredProbs` leave them. */
  probs(options) {
    const { tokens, probs } = NanoEuler.filteredProbs(this.logits, options);
    const all = new Float64Array(this.logits.length);
    tokens.forEach((token, i) => (all[token] = probs[i]));
    return all;
  }
};

/* Unpack what tools/book/live.py wrote: weights are 16-bit floats in base 64, one tensor behind the other. */
NanoEuler.unpack = ({ config, tokenizer, tensors, weights, stories }) => {
  const bytes = NanoEuler.bytesOf(weights);
  const view = new DataView(bytes.buffer);
  const numbers = Float32Array.from({ length: bytes.length / 2 }, (_, i) => NanoEuler.half(view.getUint16(2 * i, true)));
  const named = {};
  let start = 0;
  for (const [name, size] of tensors) named[name] = numbers.subarray(start, (start += size));
  return {
    tokenizer: new NanoEuler.Tokenizer(tokenizer),
    decoder: new NanoEuler.Decoder({ config, tensors: named }),
    source: new NanoEuler.Source(stories),
  };
};

NanoEuler.bytesOf = (base64) => {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
};

/* The same for weights in a byte each: a weight is its whole number times the scale of its column, in the embedding of its
   row. tensors: [name, rows, columns], rows 0 for gains; floats: scales and gains, 32 bits each; parts: the whole numbers. */
NanoEuler.unpackBytes = ({ config, tokenizer, tensors, floats, parts }) => {
  const numbers = new Float32Array(NanoEuler.bytesOf(floats).buffer);
  const whole = parts.map((part) => new Int8Array(NanoEuler.bytesOf(part).buffer));
  const named = {};
  let at = 0, part = 0, place = 0; // in `numbers`; in `whole`
  for (const [name, rows, columns] of tensors) {
    const byRow = name === "embed";
    const scales = numbers.subarray(at, (at += byRow ? rows : columns));
    named[name] = rows ? new Float32Array(rows * columns) : scales;
    for (let row = 0, i = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, i++) {
        if (place === whole[part].length) [part, place] = [part + 1, 0];
        named[name][i] = whole[part][place++] * scales[byRow ? row : column];
      }
    }
  }
  return {
    tokenizer: new NanoEuler.Tokenizer(tokenizer),
    decoder: new NanoEuler.Decoder({ config, tensors: named, looks: false }),
    source: new NanoEuler.Source([]),
  };
};

/* The number that 16 bits stand for: a sign, 5 bits of exponent, 10 of fraction (IEEE 754; weights are finite). */
NanoEuler.half = (bits) => {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24;
  return bits & 0x8000 ? -size : size;
};
