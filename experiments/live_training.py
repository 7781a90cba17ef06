"""Train the model of the landing page correctly, and with each mistake that a reader can plant there.

Node runs the page's own engine (`book/_static/live/train.js`) on the page's own stories. The page draws the stored
curves next to the reader's, and says what to expect after how many tokens.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.book import training
from tools.book.live import MODEL, ROOT
from tools.notebooks.results import save

LIVE = ROOT / "book/_static/live"
SEEDS, TOKENS, RATE = (1, 2), 140_000, 0.02
NODE = """
const fs = require("fs");
global.NanoEuler = { parts: {} };
const [live, file, broken, seed, rate, tokens] = process.argv.slice(2);
const run = (name) => require("vm").runInThisContext(fs.readFileSync(`${live}/${name}`, "utf8"));
["train.js", "training.js"].forEach(run);
const data = JSON.parse(fs.readFileSync(file, "utf8"));
const engine = NanoEuler.training(), scope = {}, curve = [];
scope.postMessage = ({ held, tokens: at }) => {
  if (held === undefined) return;
  curve.push([at, held]);
  if (at >= Number(tokens)) { console.log(JSON.stringify(curve)); process.exit(0); }
};
engine.serve(scope);
scope.onmessage({ data: { config: data.config, parameters: engine.init(data.config, Number(seed)),
  stories: NanoEuler.unpackIds(data), held: data.held, lengths: data.lengths } });
scope.onmessage({ data: { rate: Number(rate), broken, running: true } });
"""


def main() -> None:
    data = training.page_data()
    pieces = load_pretrained(MODEL)[1].token_bytes[: data["config"]["vocab_size"] - 1]
    data["lengths"] = [*map(len, pieces), 0]
    breaks = re.findall(r'^    \["(\w*)", "', (LIVE / "training.js").read_text("utf-8"), re.M)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        script, stories = Path(folder, "run.js"), Path(folder, "stories.json")
        script.write_text(NODE)
        stories.write_text(json.dumps(data))
        for seed in SEEDS:
            for broken in breaks:
                words = ["node", script, LIVE, stories, broken, str(seed), str(RATE), str(TOKENS)]
                curve = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
                rows.append({"broken": broken, "seed": seed, "curve": [[t, round(bits, 3)] for t, bits in curve]})
                print(f"{broken or 'correct':9} seed {seed}  {rows[-1]['curve'][-1]}", flush=True)
    save("live_training", {"seeds": SEEDS, "tokens": TOKENS, "rate": RATE}, rows)


if __name__ == "__main__":
    main()
