/* Answer a request with the JavaScript model of the book's page: node ask_page.js FOLDER REQUEST.json OUT. */

const fs = require("fs"), path = require("path"), vm = require("vm");

const [folder, request, out] = process.argv.slice(2);
const source = path.join(__dirname, "../../book/_static/live/model.js");
const NanoEuler = vm.runInThisContext(fs.readFileSync(source, "utf8") + "\nNanoEuler;");
const { config, tokenizer: spec, shapes } = JSON.parse(fs.readFileSync(path.join(folder, "model.json"), "utf8"));
const bytes = fs.readFileSync(path.join(folder, "weights.bin"));
const flat = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
const tensors = {};
let at = 0;
for (const [name, size] of shapes) {
  tensors[name] = flat.subarray(at, at + size);
  at += size;
}

const asked = JSON.parse(fs.readFileSync(request, "utf8"));
const texts = JSON.parse(fs.readFileSync(path.join(path.dirname(request), "strings.json"), "utf8"));
const tokenizer = new NanoEuler.Tokenizer(spec);
const decoder = new NanoEuler.Decoder({ config, tensors });
const greatest = (x) => x.reduce((best, value, i) => (value > x[best] ? i : best), 0);

const logits = new Float32Array(asked.row.length * config.vocab_size);
asked.row.forEach((token, t) => logits.set(decoder.feed(token), t * config.vocab_size));
const greedy = asked.prompts.map((prompt) => {
  decoder.length = 0;
  let last = prompt.map((token) => decoder.feed(token)).pop();
  return Array.from({ length: asked.tokens }, () => {
    const token = greatest(last);
    last = decoder.feed(token);
    return token;
  });
});
fs.writeFileSync(path.join(out, "logits.bin"), Buffer.from(logits.buffer));
const answer = { version: `node ${process.versions.node}`, strings: texts.map((text) => tokenizer.encode(text)), greedy };
fs.writeFileSync(path.join(out, "answer.json"), JSON.stringify(answer));
