/* Two instruments on the book's small model (model.js). Each takes the place of a picture, which a reader without JavaScript
   keeps: `Town` stands on the first page, `Cuts` in the chapter on sampling. Below `Town` a button loads a model of English,
   if the book was built with one, and a third picture one that trains a model; their files come when the reader asks.

   The weights, two megabytes, are fetched when the picture comes into view, by a script tag: so it works from a file, too. */

"use strict";

(() => {
  const FOLDER = document.currentScript.src.replace(/[^/]*$/, "");
  const INSTRUMENTS = { "live-model": () => Town, "live-cuts": () => Cuts };
  const ROWS = 8; // candidates in a table
  const PACE = 120; // milliseconds from one written token to the next
  const MOST = 400; // tokens written at one go
  const HOLDER = [1, 3]; // layer and head, from 0, that look at who holds the thing, where the page begins

  /* ---- Small helpers ---- */

  /* An element with attributes (functions become listeners) and children. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }

  let named = 0;
  /* A control and its label, with the value shown beside a slider. */
  function labelled(text, control, show = null) {
    control.id = `live-${++named}`;
    const label = make("label", { for: control.id }, text);
    if (!show) return make("div", { class: "live-field" }, label, control);
    const output = make("output", { for: control.id });
    control.refresh = () => {
      output.textContent = show(Number(control.value));
      control.setAttribute("aria-valuetext", output.textContent);
    };
    control.addEventListener("input", control.refresh);
    control.refresh();
    return make("div", { class: "live-field" }, label, output, control);
  }

  const slider = (min, max, step, value, input) => make("input", { type: "range", min, max, step, value, input });
  const option = (value, text) => make("option", { value }, text);
  const button = (text, click) => make("button", { type: "button", click }, text);

  const percent = (p) =>
    p === undefined ? "–" : p === 0 ? "0" : p < 0.001 ? "< 0.1 %" : `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;

  /* A table cell with p as a number and as a bar, as long as the cell where p is `full`. */
  function bar(p, kind, full = 1) {
    if (!p) return make("td", {}, make("span", { class: "live-number" }, percent(p)));
    const line = make("span", { class: `live-bar ${kind}`, "aria-hidden": "true" });
    line.style.setProperty("--p", p / full);
    return make("td", {}, line, make("span", { class: "live-number" }, percent(p)));
  }

  /* What a reader sees of a token: a space and a line's end as signs, half a character or an unseen one as bytes. */
  function shown(reading, id) {
    if (id === reading.end) return [make("em", {}, "end of text")];
    const text = reading.tokenizer.decode([id]);
    if (/\uFFFD|(?!\n)\p{C}/u.test(text)) return [reading.tokenizer.bytes[id].map((byte) => `<${byte.toString(16)}>`).join("")];
    const sign = { " ": "␣", "\n": "↵" };
    return text.split(/([ \n])/).filter(Boolean).map((part) =>
      part in sign ? make("span", { class: "live-sign", role: "img", "aria-label": part === " " ? "space" : "new line" }, sign[part]) : part,
    );
  }

  /* Tokens one behind the other, as spans; a line may break where a token begins with a space. */
  function strip(reading, ids, span) {
    return ids.flatMap((id, t) => {
      const token = make("span", span(t), ...shown(reading, id));
      return reading.tokenizer.decode([id]).startsWith(" ") ? [make("wbr"), token] : [token];
    });
  }

  const opening = (reading, story) => `${story.kind}: ${reading.tokenizer.decode(story.ids).split(" ").slice(0, 6).join(" ")} …`;

  /* ---- The first page: it writes ---- */

  /* A text, what may come next, and buttons that append it. A subclass knows the model: `heading`, `beginnings`, `start`. */
  class Writer {
    constructor(reading, data) {
      Object.assign(this, { reading, data, timer: null, ids: [] });
      this.root = make("section", { class: "live live-model-page", "aria-label": this.heading() });
      this.root.append(...this.parts());
      this.start();
    }

    parts() {
      return [make("div", { class: "live-pair" }, this.textPart(), this.nextPart())];
    }

    textPart() {
      const choose = () => this.story.value !== "" && this.begin(Number(this.story.value));
      this.story = make("select", { change: choose }, option("", "your own text"));
      this.beginnings().forEach((text, i) => this.story.append(option(i, text)));
      this.text = make("textarea", { rows: 4, spellcheck: "false", input: () => this.typed() });
      this.temperature = slider(0, 2, 0.05, this.warmth(), () => this.showNext());
      this.auto = button("Write on", () => (this.timer ? this.pause("Paused.") : this.writeOn()));
      this.status = make("p", { class: "live-status", role: "status" });
      return make("div", {},
        labelled("Start of a story", this.story),
        labelled("The text: change it as you like", this.text),
        labelled("Temperature", this.temperature, (t) => (t === 0 ? "0, always the most likely" : t.toFixed(2))),
        make("div", { class: "live-buttons" }, button("Draw a token", () => this.draw()), this.auto, ...this.buttons()),
        this.status,
      );
    }

    /* Further ones beside those that draw. */
    buttons() {
      return [];
    }

    nextPart() {
      this.rows = make("tbody");
      this.note = make("p", { class: "live-note" });
      return make("div", {},
        make("table", {},
          make("caption", {}, "What comes next? Choose a token to append it."),
          make("thead", {}, make("tr", {}, ...["token", ...this.columns()].map((text) => make("th", { scope: "col" }, text)))),
          this.rows,
        ),
        this.note,
      );
    }

    typed() {
      this.pause();
      this.write(this.reading.tokenizer.encode(this.text.value), "");
    }

    /* Draw one token from the model at the reader's temperature and append it. */
    draw() {
      const ways = NanoEuler.filteredProbs(this.reading.logits, { temperature: Number(this.temperature.value) });
      return this.add(NanoEuler.pick(ways, Math.random()));
    }

    writeOn() {
      this.auto.textContent = "Pause";
      this.status.textContent = "Writing.";
      let left = MOST;
      this.timer = setInterval(() => {
        if (!this.draw()) this.pause();
        else if (--left === 0) this.pause(`Paused after ${MOST} tokens.`);
      }, PACE);
    }

    pause(said = null) {
      clearInterval(this.timer);
      this.timer = null;
      this.auto.textContent = "Write on";
      if (said !== null) this.status.textContent = said;
    }

    /* Append a token and show its probability. Returns whether the text can continue after it. */
    add(id) {
      const p = this.reading.probs({ temperature: Number(this.temperature.value) })[id];
      const true_p = this.reading.source.next(this.ids);
      const name = id === this.reading.end ? "The end of the text" : `“${this.reading.tokenizer.decode([id])}”`;
      const source = true_p ? `, under the true source ${percent(true_p.get(id) ?? 0)}` : "";
      if (!this.timer || id === this.reading.end) this.status.textContent = `${name}: probability ${percent(p)} under the model${source}.`;
      if (id === this.reading.end) return false;
      this.write([...this.ids, id]);
      return true;
    }

    /* The text is these ids now. */
    write(ids, said = null) {
      this.ids = ids;
      this.reading.read(ids);
      const text = this.reading.tokenizer.decode(ids);
      if (this.text.value !== text) this.text.value = text;
      this.text.scrollTop = this.text.scrollHeight;
      if (said !== null) this.status.textContent = said;
      this.story.value = this.chosen();
      this.showNext();
    }

    /* The most likely tokens under the model or the source. marked: the tokens after which the source stays known. */
    showNext(marked = []) {
      const model = this.reading.probs({ temperature: Number(this.temperature.value) });
      const source = this.reading.source.next(this.ids);
      const weight = (id) => Math.max(model[id], source?.get(id) ?? 0);
      const { logits } = this.reading;
      const likely = [...model.keys()].sort((a, b) => weight(b) - weight(a) || logits[b] - logits[a]).slice(0, ROWS);
      this.rows.replaceChildren(...likely.map((id, row) => {
        const choose = button("", () => {
          this.pause();
          this.add(id);
          this.rows.querySelectorAll("button")[row].focus(); // the row that is there now
        });
        choose.append(...shown(this.reading, id));
        const token = make("th", { scope: "row", class: marked.includes(id) ? "live-told" : "" }, choose);
        return make("tr", {}, token, ...this.cells(model[id], source && (source.get(id) ?? 0)));
      }));
    }
  }

  /* Stories of Königsberg, their true source next to the model, and where the attention heads look. */
  class Town extends Writer {
    heading() {
      return "The book's small model, running in this page";
    }

    beginnings() {
      return this.data.stories.map((story) => opening(this.reading, story));
    }

    warmth() {
      return 1;
    }

    columns() {
      return ["model", "true source"];
    }

    cells(model, source) {
      return [bar(model, "model"), bar(source, "source")];
    }

    parts() {
      return [...super.parts(), this.attentionPart()];
    }

    start() {
      [this.layer.value, this.head.value] = HOLDER; // the next token is the name of the person who holds the thing
      this.write(this.data.stories[0].ids.slice(0, this.data.places.fact), "The model has read the start of a story.");
    }

    buttons() {
      this.follow = button("Next token of the story", () => this.add(this.told()));
      this.back = button("Back to the true source", () => this.write(this.known, "The text is part of a stored story again."));
      return [this.follow, this.back];
    }

    attentionPart() {
      const { layers, heads } = this.reading.decoder.config;
      const choices = (n, name) => Array.from({ length: n }, (_, i) => option(i, `${name} ${i + 1}`));
      const look = () => this.showAttention();
      this.layer = make("select", { change: look }, ...choices(layers, "layer"));
      this.head = make("select", { change: look }, option("", "mean of all"), ...choices(heads, "head"));
      this.from = slider(0, 0, 1, 0, look);
      this.tokens = make("p", { class: "live-tokens" });
      this.looked = make("p", { class: "live-note", "aria-live": "polite" });
      return make("div", { role: "group", "aria-label": "Attention" },
        make("p", { class: "live-title" }, "Where does a head look?"),
        make("div", { class: "live-fields" },
          labelled("Layer", this.layer),
          labelled("Head", this.head),
          labelled("Looking from", this.from, (t) => `token ${t + 1}`),
        ),
        this.tokens,
        this.looked,
      );
    }

    /* The next token of the stored story that begins with the text, if there is one. */
    told() {
      const story = this.reading.source.story(this.ids);
      return story && (story.ids[this.ids.length] ?? this.reading.end);
    }

    /* The tokens after which the text still begins a stored story. */
    stored() {
      const { ids, reading } = this;
      const begin = this.data.stories.filter((story) => ids.every((id, t) => id === story.ids[t]));
      return [...new Set(begin.map((story) => story.ids[ids.length] ?? reading.end))];
    }

    chosen() {
      const story = this.ids.length ? this.reading.source.story(this.ids) : undefined;
      return story ? String(this.data.stories.indexOf(story)) : "";
    }

    begin(number) {
      this.pause();
      const { ids } = this.data.stories[number];
      const sentence = ids.findIndex((id) => this.reading.tokenizer.decode([id]).endsWith(".")) + 1;
      this.write(ids.slice(0, sentence), "The model has read the first sentence of a story.");
    }

    write(ids, said = null) {
      super.write(ids, said);
      if (this.reading.source.next(ids)) this.known = ids;
      this.follow.disabled = this.story.value === "";
      this.back.disabled = this.known === ids;
      this.from.max = this.reading.window.length - 1;
      this.from.value = this.from.max;
      this.showAttention();
    }

    showNext() {
      const stored = this.stored(), count = this.data.stories.length;
      super.showNext(stored);
      const model = this.reading.probs({ temperature: Number(this.temperature.value) });
      const stay = percent(stored.reduce((sum, id) => sum + model[id], 0));
      this.note.textContent = stored.length
        ? `The true source is the grammar that writes the stories. Its probabilities were computed for ${count} stories when the book was built, at temperature 1; the slider changes only the model. A token with an orange edge stays in one of these stories (a sampled token does so with probability ${stay}). After any other token only the model is shown.`
        : `The text has left the ${count} stories for which the true source was computed, so only the model is shown.`;
    }

    showAttention() {
      const from = Number(this.from.value);
      this.from.refresh();
      const head = this.head.value === "" ? null : Number(this.head.value);
      const weights = this.reading.decoder.attention(Number(this.layer.value), head, from);
      this.tokens.replaceChildren(...strip(this.reading, this.reading.window, (t) => ({
        class: t === from ? "live-from" : "",
        style: `--p: ${weights[t] ?? 0}`,
        click: () => { this.from.value = t; this.showAttention(); },
      })));
      const most = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
      const where = most.map((t) => make("span", {}, ...shown(this.reading, this.reading.window[t]), ` (token ${t + 1}) ${percent(weights[t])}`));
      this.looked.replaceChildren("Largest weights: ", ...where.flatMap((place, i) => (i ? [", ", place] : [place])), ".");
    }
  }

  /* English, whose source is unknown. */
  class English extends Writer {
    heading() {
      return "A model of English, running in this page";
    }

    beginnings() {
      return ["It was a dark and", "\"My dear,\" said she,", "The old man looked at the sea", "A Walk in Königsberg\n\nCHAPTER I"];
    }

    warmth() {
      return 0.8;
    }

    columns() {
      return ["model"];
    }

    cells(model) {
      return [bar(model, "model")];
    }

    parts() {
      return [
        make("p", { class: "live-title" }, "A model of English"),
        make("p", { class: "live-note" }, `This model has read ${this.data.source}. It imitates their style, but what it writes makes no sense and is not true. Licence: ${this.data.licence}.`),
        ...super.parts(),
      ];
    }

    start() {
      this.begin(0);
    }

    chosen() {
      const text = this.reading.tokenizer.decode(this.ids);
      const number = this.beginnings().findIndex((beginning) => text && text.startsWith(beginning));
      return number < 0 ? "" : String(number);
    }

    begin(number) {
      this.pause();
      this.write(this.reading.tokenizer.encode(this.beginnings()[number]), "The model has read the start of a text.");
    }

    showNext() {
      super.showNext();
      this.note.textContent = "Only the model is shown here. For the stories of Königsberg all true probabilities are known, so the table above shows how far their model is from them. The true probabilities of English are unknown, and so is the best possible loss of a model of it.";
    }
  }

  /* ---- Chapter 14: temperature and the cuts ---- */

  class Cuts {
    constructor(reading, data) {
      Object.assign(this, { reading, data, story: data.stories[0], draws: null });
      this.root = make("section", { class: "live", "aria-label": "Temperature and the cuts, on the model itself" });
      this.root.append(this.placePart(), this.rulesPart(), this.tablePart());
      this.go(data.places.free);
    }

    placePart() {
      this.at = slider(0, this.story.ids.length - 1, 1, 0, () => this.go(Number(this.at.value)));
      this.told = make("p", { class: "live-tokens" });
      const { fact, free } = this.data.places;
      return make("div", {},
        make("div", { class: "live-buttons" }, button("The fact", () => this.go(fact)), button("The free token", () => this.go(free))),
        labelled("Position in the story", this.at, (t) => `before token ${t + 1}`),
        this.told,
      );
    }

    rulesPart() {
      const show = () => { this.draws = null; this.show(); };
      this.rules = {
        temperature: slider(0, 3, 0.05, 1, show),
        topK: slider(0, 40, 1, 0, show),
        topP: slider(0.05, 1, 0.01, 1, show),
        minP: slider(0, 1, 0.01, 0, show),
      };
      const { temperature, topK, topP, minP } = this.rules;
      return make("div", { class: "live-fields" },
        labelled("Temperature", temperature, (t) => (t === 0 ? "0, greedy" : t.toFixed(2))),
        labelled("top-k", topK, (k) => (k === 0 ? "all" : `${k} tokens`)),
        labelled("top-p", topP, (p) => (p === 1 ? "all" : p.toFixed(2))),
        labelled("min-p", minP, (m) => (m === 0 ? "all" : m.toFixed(2))),
      );
    }

    tablePart() {
      this.rows = make("tbody");
      this.summary = make("p", { class: "live-status", role: "status" });
      const head = (text) => make("th", { scope: "col" }, text);
      return make("div", {},
        this.summary,
        make("div", { class: "live-buttons" }, button("Draw 100 times", () => this.draw()), button("No cuts", () => this.reset())),
        make("table", {},
          make("caption", {}, "The most likely tokens at this temperature, before and after the cuts"),
          make("thead", {}, make("tr", {}, head("token"), head("model"), head("after cuts"), head("true source"), head("drawn"))),
          this.rows,
        ),
      );
    }

    go(at) {
      this.at.value = at;
      this.at.refresh();
      const ids = this.story.ids.slice(0, at);
      this.reading.read(ids);
      this.told.replaceChildren(...strip(this.reading, ids, () => ({})), make("span", { class: "live-from" }, "?"));
      this.draws = null;
      this.show();
    }

    reset() {
      for (const [name, value] of Object.entries({ temperature: 1, topK: 0, topP: 1, minP: 0 })) {
        this.rules[name].value = value;
        this.rules[name].refresh();
      }
      this.draws = null;
      this.show();
    }

    options() {
      return Object.fromEntries(Object.entries(this.rules).map(([name, control]) => [name, Number(control.value)]));
    }

    draw() {
      const left = NanoEuler.filteredProbs(this.reading.logits, this.options());
      this.draws = new Map();
      for (let i = 0; i < 100; i++) {
        const id = NanoEuler.pick(left, Math.random());
        this.draws.set(id, (this.draws.get(id) ?? 0) + 1);
      }
      this.show();
    }

    show() {
      const options = this.options();
      const heated = this.reading.probs({ temperature: options.temperature });
      const left = this.reading.probs(options);
      const source = this.reading.source.next(this.reading.ids);
      const likely = [...heated.keys()].sort((a, b) => heated[b] - heated[a]).slice(0, 2 * ROWS);
      const full = Math.max(...likely.flatMap((id) => [left[id], source.get(id) ?? 0]));
      this.rows.replaceChildren(...likely.map((id) => make("tr", { class: left[id] ? "" : "live-cut" },
        make("th", { scope: "row" }, ...shown(this.reading, id)),
        bar(heated[id], "model", full),
        left[id] ? bar(left[id], "model", full) : make("td", {}, "cut"),
        bar(source.get(id) ?? 0, "source", full),
        make("td", {}, this.draws ? String(this.draws.get(id) ?? 0) : ""),
      )));
      const kept = left.filter((p) => p > 0).length;
      const lost = (p) => [...p].reduce((sum, [id, share]) => sum + (left[id] ? 0 : share), 0);
      this.summary.textContent =
        `${kept} of ${left.length} tokens are left, entropy ${entropy(left).toFixed(2)} of ${entropy(heated).toFixed(2)} nats. ` +
        `The cuts take ${percent(lost(heated.entries()))} of the model's probability and ${percent(lost(source))} of the true source's.`;
    }
  }

  const entropy = (probs) => probs.reduce((sum, p) => sum - (p > 0 ? p * Math.log(p) : 0), 0);

  /* ---- From the picture to the instrument ---- */

  const loading = new Map(); // a file is fetched once, whoever asks
  function load(name) {
    if (!loading.has(name)) {
      loading.set(name, new Promise((resolve, reject) => {
        const src = FOLDER + name;
        const fail = () => {
          loading.delete(name); // to be tried again
          reject(new Error(`${src} is missing`));
        };
        document.head.append(make("script", { src, load: resolve, error: fail }));
      }));
    }
    return loading.get(name);
  }

  async function start(picture, Instrument) {
    const place = picture.closest("a") ?? picture;
    try {
      await load("konigsberg.js");
      const reading = new NanoEuler.Reading(NanoEuler.unpack(NanoEuler.data));
      const { root } = new Instrument(reading, NanoEuler.data);
      place.replaceWith(root);
      if (Instrument === Town && NanoEuler.data.english) root.after(englishOffer(NanoEuler.data.english));
    } catch (error) {
      place.after(make("p", { class: "live-note" }, `The model did not start, so this is a picture of it: ${error.message}.`));
    }
  }

  /* A button that loads the English model, piece by piece, and puts it in its own place. english: parts; bytes of all
     files; source and licence, of what it has read. */
  function englishOffer(english) {
    const { parts, bytes } = english;
    const size = `${(bytes / 1e6).toFixed(1)} MB`;
    const meter = make("progress", { max: parts + 1, value: 0, hidden: true, "aria-label": "Loading the English model" });
    const said = make("p", { class: "live-note", role: "status" }, `A model of the same kind that has read ${english.source}. What it writes sounds like English and makes no sense.`);
    const ask = button(`Load a model of English (${size})`, async () => {
      ask.disabled = true;
      meter.hidden = false;
      try {
        await load("english.js");
        for (let i = 0; i < parts; i++) {
          meter.value = i + 1;
          said.textContent = `Loading, ${Math.round((100 * (i + 1)) / (parts + 1))} % of ${size}.`;
          await load(`english-${i}.js`);
        }
        const { root, auto } = new English(new NanoEuler.Reading(NanoEuler.unpackBytes(NanoEuler.english)), english);
        offered.replaceWith(root);
        auto.focus();
      } catch (error) {
        ask.disabled = false;
        meter.hidden = true;
        said.textContent = `The English model did not start: ${error.message}.`;
      }
    });
    const offered = make("div", { class: "live-offer" }, ask, meter, said);
    return offered;
  }

  /* Under the picture of a training stands a button that puts the instrument in its place. */
  function offer(picture) {
    const place = picture.closest("a") ?? picture;
    const ask = button("Train a model in this page (loads 1.1 MB)", async () => {
      ask.disabled = true;
      try {
        for (const name of ["train.js", "training.js", "stories.js"]) await load(name);
        const { root, go } = new NanoEuler.Training(NanoEuler.stories);
        place.replaceWith(root);
        offered.remove();
        go.focus();
      } catch (error) {
        offered.append(make("p", { class: "live-note" }, `The training did not start: ${error.message}.`));
      }
    });
    const offered = make("div", { class: "live-offer" }, ask);
    place.after(offered);
    place.addEventListener("click", event => {  // the picture shows buttons: this is the one it stands for
      event.preventDefault();
      ask.click();
    });
  }

  NanoEuler.parts = { make, labelled, slider, option, button };
  document.querySelectorAll("img.live-training").forEach(offer);

  for (const [name, instrument] of Object.entries(INSTRUMENTS)) {
    for (const picture of document.querySelectorAll(`img.${name}`)) {
      const watch = new IntersectionObserver(([entry]) => {
        if (!entry.isIntersecting) return;
        watch.disconnect();
        start(picture, instrument());
      }, { rootMargin: "200px" });
      watch.observe(picture);
    }
  }
})();
