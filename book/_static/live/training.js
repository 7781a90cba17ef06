/* The instrument that trains: the engine of train.js in a worker, its curve, and what a reader may change meanwhile.
   page.js loads this file, the engine and the stories when the reader asks for them. */

"use strict";

(() => {
  const { make, labelled, slider, option, button } = NanoEuler.parts;
  const RATE = 0.02; // where the slider stands at first; it falls as the stories run out
  const BREAKS = [
    ["", "none: the model is correct"],
    ["rope", "RoPE's gradient is rotated the wrong way"],
    ["mean", "RMSNorm's gradient lacks its mean term"],
    ["sign", "the gradient into the feed-forward layers has the wrong sign"],
    ["residual", "no residual connections: each layer replaces its input"],
    ["ahead", "each position sees the next token"],
  ];
  const RANGE = [4.5, 0.125]; // bits per byte at the top and the bottom of the plot
  const VISIBLE = 0.05; // a relative difference between two curves that a reader can see in the plot

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
      this.expected = make("p", { class: "live-note", "aria-live": "polite" });
      this.story = make("p", { class: "live-story", "aria-live": "polite" });
      this.go = button("Start", () => this.run(!this.running));
      this.rate = slider(-4, -1, 0.05, Math.log10(RATE), () => this.send());
      this.broken = make("select", { change: () => this.plant() }, ...BREAKS.map((entry) => option(...entry)));
      this.root = make("section", { class: "live", "aria-label": "A model that trains in this page" },
        this.plot, this.numbers, this.status,
        make("div", { class: "live-buttons" }, this.go, button("Let it tell a story", () => this.worker.postMessage({ weights: true })),
          button("A new model", () => this.begin("A new model, with random weights."))),
        labelled("Learning rate", this.rate, (x) => (10 ** x).toPrecision(2)), labelled("Planted mistake", this.broken),
        this.expected, this.story);
      new ResizeObserver(() => this.draw()).observe(this.plot);
      this.begin("The model trains on your machine; nothing is sent anywhere.");
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
      this.plant();
    }

    run(running, said = running ? "Training." : "Paused.") {
      this.running = running;
      this.go.textContent = running ? "Pause" : this.last.tokens ? "Continue" : "Start";
      this.status.textContent = said;
      this.send();
    }

    send() {
      this.worker.postMessage({ rate: 10 ** this.rate.value, broken: this.broken.value, running: this.running });
    }

    /* The reader has chosen a mistake: the engine makes it from the next batch on. */
    plant() {
      this.send();
      this.expected.textContent = this.expectation();
      this.draw();
    }

    /* What the curve will show, from runs that began with the mistake: [tokens, bits] at the same places for each. */
    expectation() {
      const correct = this.data.curves[""], curve = this.data.curves[this.broken.value];
      const { tokens, seconds } = this.last;
      const when = (count) => `${words(Math.round(count / 1000) * 1000)} tokens` +
        (tokens > 5000 ? ` (${words(Math.round((count * seconds) / tokens))} s at this speed)` : "");
      const [most, bits] = curve.at(-1), reached = `After ${when(most)} expect ${bits.toFixed(2)} bits per byte`;
      if (curve === correct) return `${reached}. The dotted curve is a run that was made before.`;
      const other = `; a correct model has ${correct.at(-1)[1].toFixed(2)}`;
      const apart = curve.findIndex(([, bits], i) => Math.abs(bits - correct[i][1]) > VISIBLE * correct[i][1]);
      const shown = apart < 0 ? "So the loss does not show this mistake; a check of the gradient does (chapter 05)."
        : `The difference can be seen after ${when(curve[apart][0])}.`;
      const fresh = tokens ? " Press “A new model” to train with the mistake from the start, as in the dotted curve." : "";
      return `${reached}${other}. ${shown}${fresh}`;
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
          ? "Below the entropy of the source. No model can predict so well, so it must see the token that it should predict."
          : `Better than the trigram, after ${words(tokens)} tokens and ${Math.round(seconds)} seconds.`;
      }
      if (over) {
        this.run(false, `All ${words(this.data.count)} stories have been read once.`);
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
      const [left, right, top, bottom] = [58, width - 10, 8, height - 40];
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
        ${text([(left + right) / 2, height - 6], "tokens read")}
        <g transform="rotate(-90)">${text([-(top + bottom) / 2, 14], "bits per byte, held-out stories")}</g>
        <polyline class="expected" points="${path(this.data.curves[this.broken.value].filter(([tokens]) => tokens <= most))}"/>
        ${level(trigram, "trigram")}${text([right, y(trigram) - 5], `trigram ${trigram.toFixed(2)}`, "end")}
        ${level(floor, "floor")}${text([right, y(floor) - 5], `entropy of the source ${floor.toFixed(2)}`, "end")}
        ${this.earlier.map((curve) => `<polyline class="earlier" points="${path(curve)}"/>`).join("")}
        <polyline class="batches" points="${path(this.batches)}"/><polyline class="held" points="${path(this.held)}"/></svg>`;
      const { tokens, seconds } = this.last;
      this.numbers.textContent = !tokens ? `${words(count)} stories for training; the loss is measured on others, which are held out.`
        : `${words(tokens)} tokens in ${Math.round(seconds)} s, ${words(Math.round(tokens / seconds / 100) * 100)} per second. Held-out stories: ${now.toFixed(3)} bits per byte.`;
    }

    described(now) {
      const { floor, trigram } = this.data;
      const model = now === undefined ? "no measurement yet" : `${now.toFixed(2)} now`;
      return `Bits per byte on held-out stories: ${model}; trigram ${trigram.toFixed(2)}, entropy of the source ${floor.toFixed(2)}.`;
    }
  };

  const words = (number) => number.toLocaleString("en");

  /* Ids of 9 bits, one behind the other in base 64. */
  NanoEuler.unpackIds = ({ ids, length }) => {
    const bytes = Uint8Array.from(`${atob(ids)}\0`, (character) => character.charCodeAt(0));
    return Uint16Array.from({ length }, (_, i) => ((bytes[(9 * i) >> 3] | (bytes[((9 * i) >> 3) + 1] << 8)) >> ((9 * i) & 7)) & 511);
  };
})();
