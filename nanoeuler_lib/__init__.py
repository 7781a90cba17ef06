"""NanoEuler: a GPT-2-class language model by hand, and the book that derives it.

The house has wings. Text, model and CUDA do not know one another; engine = model x kernels; speaking = text x model;
training = all of it. Nothing is imported upward, and nothing of this package inside a function but in `command`.

    ground        `errors`, `config`, `files`, `machine` (cores and memory), `plots`, `practice`, `significance`
    ops           the layers: `reference`, the truth; `cpu`, the same and fast; `plain`; `ops.use` for a reader's own
    cuda          a kernel's text, checked and launched on a GPU or on a CPU; `kernels`: those of the book
    text          `tokenizer`, `data`, `ngram`, `shards` on disk, `turns` and `examples` of a conversation
    model         parameters, plan, forward and backward, optimisers, a step, a decoder; later `gpt2`
    world         Königsberg, and the probability of every word of it; `corpus`: other people's text
    engine        the model on a GPU: steps as lists of launches; `device` chooses; later `many` cards
    speaking      `generate` samples from a model, `chat` answers
    training      datasets, the loop, what survives a kill, what goes wrong, reports; later `preferences`, `rewards`
    school        `drills` plants bugs and finds them, `assign` makes papers
    command       `nanoeuler`: `cli` does, `arguments` explains
    later         `formats`: other programs' weights; `understanding`: probes and scaling laws
"""

__version__ = "0.2.0"
