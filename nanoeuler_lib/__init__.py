"""NanoEuler: a GPT-2-class language model by hand, and the book that derives it.

The house has wings. Text, model and CUDA do not know one another; engine = model x kernels; speaking = text x model;
training = all of it. Nothing is imported upward, and nothing of this package inside a function but in `command`.

    ground        `errors`, `config`, `files`, `machine` (cores and memory)
    ops           the layers: `reference`, the truth; `cpu`, the same and fast; `plain`; `ops.use` for a reader's own
    cuda          a kernel's text, checked and launched on a GPU or on a CPU; `kernels`: those of the book
    text          `bpe`, `tokenizer`, `pieces`, `sources`, `data`, `ngram`, `shards`, `turns` and `examples` of chats
    model         parameters, plan, forward and backward, optimisers, a step, a decoder; `gpt2`: another model
    world         Königsberg, and the probability of every word of it; it imports no other wing. `corpus`: other texts
    engine        the model on a GPU: steps as lists of launches; `device` chooses; later `many` cards
    speaking      `generate` samples from a model, `score` says what a text costs it, `chat` answers
    training      datasets, the loop, what survives a kill, what goes wrong, reports, `preferences`; later `rewards`
    school        `drills` plants bugs and finds them, `assign` makes papers
    command       `nanoeuler`: `cli` does, `arguments` explains
    formats       a run as Hugging Face's folder or a GGUF file; their Llamas and GPT-2s, and llama2.c's, as a run
    for chapters  `practice` (checks of answers), `plots`, `shapes`, `significance`
    understanding what a reader may believe, what probes read; later scaling laws
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.2.0"

# Modules of version 0.1, and where their names are now: copies of notebooks, assignments and scripts import them so
# until 0.3. A copy that calls a composite of `ops.cpu` by itself (chapters 08, 13, 16, 29) has to be renewed even so.
MOVED = {
    "arguments": "command.arguments",
    "assign": "school.assign",
    "chat": "speaking.chat text.turns command.ask",
    "checkpoint": "training.checkpoint",
    "cli": "command.cli",
    "cuda.compiler": "cuda.checker.compiler",
    "cuda.cpu": "cuda.checker.cpu",
    "data": "text.data",
    "device": "engine.device",
    "drills": "school.drills",
    "evaluate": "training.evaluate",
    "generate": "speaking.generate model.decoder",
    "gradcheck": "model.gradcheck",
    "ngram": "text.ngram",
    "ops.flash": "engine.flash",
    "ops.flash_backward": "engine.flash_backward",
    "ops.gpu": "engine.program",
    "optim": "model.optim",
    "plan": "model.plan",
    "report": "training.report",
    "run_folder": "training.run_folder",
    "sft": "training.sft training.loop training.datasets text.examples text.turns world.conversations",
    "shards": "text.shards training.loop training.datasets training.train",
    "step": "model.step machine",
    "tokenizer": "text.tokenizer",
    "train": "training.train training.loop training.datasets training.journal training.run_folder model.step machine",
    "watch": "training.watch",
}


class _Moved(ModuleType):
    """A module by its old name: it has the names of its homes, and what is set in it is set there."""

    homes = ()

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        for home in self.homes:
            part = isinstance(value, ModuleType)  # which importing it sets
            if name in vars(home) and not part:
                setattr(home, name, value)


class _Finder:
    """Finds what MOVED lists, with a line that says the new name."""

    def find_spec(self, name, path=None, target=None):
        package, _, old = name.partition(".")
        inside = old.startswith(("assign.", "drills."))
        if package != __name__ or not (inside or old in MOVED):
            return None
        spec = ModuleSpec(name, self, is_package=old in ("assign", "drills"))
        spec.loader_state = f"school.{old}" if inside else MOVED[old]
        return spec

    def get_code(self, name):
        """Of the module itself: `python -m nanoeuler_lib.cli` asks for it."""
        home = MOVED[name.partition(".")[2]].split()[0]
        return importlib.util.find_spec(f"{__name__}.{home}").loader.get_code(f"{__name__}.{home}")

    def create_module(self, spec):
        return _Moved(spec.name)

    def exec_module(self, module):
        names = module.__spec__.loader_state.split()
        print(
            f"{module.__name__}: since 0.2 {__name__}.{{{', '.join(names)}}}, until 0.3 as well",
            file=sys.stderr,
        )
        homes = [importlib.import_module(f"{__name__}.{name}") for name in names]
        for home in reversed(homes):
            vars(module).update({name: value for name, value in vars(home).items() if not name.startswith("__")})
        vars(module)["homes"] = homes


sys.meta_path.append(_Finder())
