/* The instrument that trains: the engine of train.js in a worker, its curve, and what a reader may change meanwhile.
   page.js loads this file, the engine and the stories when the reader asks for them. */

"use strict";

(() => {
  const { make, labelled, slider, option, button } = NanoEuler.parts;
  const RATE = 0.02; // where the slider stands at first; it falls as the stories run out
  const BREAKS = [
    ["", "nothing: the model is healthy"],
    ["rope", "RoPE's gradient turns the wrong way"],
    ["mean", "RMSNorm's gradient lacks its mean term"],
    ["sign", "the gradient into the feed-forward halves has the wrong sign"],
    ["residual", "no residual: a half replaces the stream"],
    ["ahead", "each position sees the next word"],
  ];
  const RANGE = [4.5, 0.125]; // bits a byte at the top and the bottom of the plot

  NanoEuler.Training = class {
    /* data: what tools/book/training.py wrote. */
    constructor(data) {
      this.data = data;
      this.tokenizer = new NanoEuler.Tokenizer(data.tokenizer);
      this.stories = NanoEuler.unpackIds(data);
      this.earlier = []; // the curves of runs before this one
      this.calm = matchMedia("(prefers-reduced-motion: reduce)").matches; // draw at measurements only
      const source = URL.createObjectURL(new Blob([`"use strict";(${NanoEuler.training})().serve(self);`], { type: "text/javascript" }));
      this.worker = new Worker(source);
      this.worker.onmessage = (message) => this.hear(message.data);
      this.plot = make("div", { class: "live-plot" });
      this.numbers = make("p", { class: "live-note" });
      this.status = make("p", { class: "live-status", role: "status" });
      this.story = make("p", { class: "live-story", "aria-live": "polite" });
      this.go = button("Start", () => this.run(!this.running));
      this.rate = slider(-4, -1, 0.05, Math.log10(RATE), () => this.send());
      this.broken = make("select", { change: () => this.send() }, ...BREAKS.map((entry) => option(...entry)));
      this.root = make("section", { class: "live", "aria-label": "A model that trains in this page" },
        this.plot, this.numbers, this.status,
        make("div", { class: "live-buttons" }, this.go, button("Let it tell a story", () => this.worker.postMessage({ weights: true })),
          button("A new model", () => this.begin("A new model, which has read nothing."))),
        labelled("Learning rate", this.rate, (x) => (10 ** x).toPrecision(2)), labelled("Break", this.broken),
        this.story);
      new ResizeObserver(() => this.draw()).observe(this.plot);
      this.begin("Nothing is sent anywhere: the model trains on this machine.");
    }

    /* A fresh model; the curve so far stays in the plot. */
    begin(said) {
      if (this.held?.length > 1) this.earlier.push(this.held);
      Object.assign(this, { held: [], batches: [], passed: false, over: false, last: { tokens: 0, seconds: 0 } });
      const { config, held } = this.data;
      const lengths = this.tokenizer.bytes.map((bytes) => bytes.length).concat(0);
      const parameters = NanoEuler.training().init(config, Math.floor(Math.random() * 2 ** 31));
      this.worker.postMessage({ config, parameters, stories: this.stories, held, lengths });
      this.go.disabled = false;
      this.run(false, said);
      this.draw();
    }

    run(running, said = running ? "Training." : "Paused.") {
      this.running = running;
      this.go.textContent = running ? "Pause" : this.last.tokens ? "Go on" : "Start";
      this.status.textContent = said;
      this.send();
    }

    send() {
      this.worker.postMessage({ rate: 10 ** this.rate.value, broken: this.broken.value, running: this.running });
    }

    /* A message of the worker: after a batch, after a look at the held-out stories, with weights, or at the end. */
    hear({ batch, held, weights, over, tokens, seconds }) {
      this.last = { tokens, seconds };
      if (batch !== undefined) this.batches.push([tokens, batch]);
      if (held !== undefined) this.held.push([tokens, held]);
      if (weights) this.tell(weights);
      if (held < this.data.trigram && !this.passed) {
        this.passed = true;
        this.status.textContent = held < this.data.floor
          ? "Below the source itself: no model can predict so well. It sees what it should predict."
          : `Better than the trigram, after ${words(tokens)} tokens and ${Math.round(seconds)} seconds.`;
      }
      if (over) {
        this.run(false, `All ${words(this.data.count)} stories are read, each of them once.`);
        this.go.disabled = true;
      }
      if (held !== undefined || !this.calm) this.draw();
    }

    /* A story from the weights as they are now, by the decoder of model.js. */
    tell(weights) {
      const { config, tensors } = this.data;
      let at = 0;
      const named = Object.fromEntries(tensors.map(([name, size]) => [name, weights.subarray(at, (at += size))]));
      const decoder = new NanoEuler.Decoder({ config, tensors: named });
      const end = config.vocab_size - 1;
      const ids = [];
      for (let id = end; ids.length < config.context - 1; ids.push(id)) {
        id = NanoEuler.pick(NanoEuler.filteredProbs(decoder.feed(id)), Math.random());
        if (!(id >= 0) || id === end) break;
      }
      this.story.textContent = `After ${words(this.last.tokens)} tokens: “${this.tokenizer.decode(ids)}”`;
    }

    draw() {
      const { count, floor, trigram } = this.data;
      const width = Math.max(260, this.plot.clientWidth), height = 280;
      const [left, right, top, bottom] = [40, width - 10, 8, height - 40];
      const most = Math.max(100_000, ...[this.held, ...this.earlier].map((curve) => (curve.at(-1)?.[0] ?? 0) * 1.15));
      const x = (tokens) => left + ((right - left) * tokens) / most;
      const [high, low] = RANGE.map(Math.log2);
      const y = (bits) => Math.min(bottom, Math.max(top, top + ((bottom - top) * (high - Math.log2(bits))) / (high - low)));
      const path = (curve) => curve.filter(([, bits]) => bits > 0).map(([tokens, bits]) => `${x(tokens).toFixed(1)},${y(bits).toFixed(1)}`).join(" ");
      const text = (at, words, anchor = "middle", kind = "") => `<text x="${at[0]}" y="${at[1]}" text-anchor="${anchor}" class="${kind}">${words}</text>`;
      const level = (bits, name) => `<line x1="${left}" x2="${right}" y1="${y(bits)}" y2="${y(bits)}" class="${name}"/>`;
      const marks = [0, 1, 2, 3, 4].map((i) => (i * most) / 4).map((tokens) => text([x(tokens), bottom + 16], tokens ? `${Math.round(tokens / 1000)}k` : 0, tokens === most ? "end" : "middle"));
      const now = this.held.at(-1)?.[1];
      this.plot.innerHTML = `<svg width="${width}" height="${height}" role="img" aria-label="${this.described(now)}">
        ${[0.125, 0.25, 0.5, 1, 2, 4].map((bits) => level(bits, "grid") + text([left - 6, y(bits) + 4], bits, "end")).join("")}${marks.join("")}
        ${text([(left + right) / 2, height - 6], "tokens read; up: bits for each byte")}
        ${level(trigram, "trigram")}${text([right, y(trigram) - 5], `trigram ${trigram.toFixed(2)}`, "end")}
        ${level(floor, "floor")}${text([right, y(floor) - 5], `the source itself ${floor.toFixed(2)}`, "end")}
        ${this.earlier.map((curve) => `<polyline class="earlier" points="${path(curve)}"/>`).join("")}
        <polyline class="batches" points="${path(this.batches)}"/><polyline class="held" points="${path(this.held)}"/></svg>`;
      const { tokens, seconds } = this.last;
      this.numbers.textContent = !tokens ? `${words(count)} stories to read; held-out ones measure it.`
        : `${words(tokens)} tokens in ${Math.round(seconds)} s, ${words(Math.round(tokens / seconds / 100) * 100)} a second. Held-out stories: ${now.toFixed(3)} bits a byte.`;
    }

    described(now) {
      const { floor, trigram } = this.data;
      const model = now === undefined ? "no measurement yet" : `${now.toFixed(2)} now`;
      return `Bits a byte on held-out stories: ${model}; trigram ${trigram.toFixed(2)}, the source itself ${floor.toFixed(2)}.`;
    }
  };

  const words = (number) => number.toLocaleString("en");

  /* Ids of 9 bits, one behind the other in base 64. */
  NanoEuler.unpackIds = ({ ids, length }) => {
    const bytes = Uint8Array.from(`${atob(ids)}\0`, (character) => character.charCodeAt(0));
    return Uint16Array.from({ length }, (_, i) => ((bytes[(9 * i) >> 3] | (bytes[((9 * i) >> 3) + 1] << 8)) >> ((9 * i) & 7)) & 511);
  };
})();
