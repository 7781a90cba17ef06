"""NanoEuler: a GPT-2-class language model by hand, and the book that derives it.

Text, model and CUDA do not know one another; engine = model x kernels; speaking = text x model; training = all of it.
Nothing is imported upward, and nothing of this package is imported inside a function, except in `command`.

    (top level)     `errors`, `config`, `files`, `machine` (cores and memory); for chapters `plots`, `shapes`,
                    `practice` (checks of answers), `significance`
    ops             the layers: `reference`, the truth; `cpu`, the same and fast; `plain`; `ops.use` for a reader's own
    cuda            compile, check and launch a kernel, on a GPU or on a CPU; `kernels`: the CUDA sources of the book
    text            `bpe`, `tokenizer`, `vocabularies`, `ngram`, `sources`, `data`, `shards`; chats: `turns`, `examples`
    model           parameters, plan, forward and backward, optimisers, a step, decoders; `gpt2`: another model
    world           Königsberg, and the probability of every word of it
    corpus          other people's text, fetched and cleaned
    engine          the model on a GPU: steps as lists of launches; `device` chooses, `many` spreads a step over GPUs
    speaking        `generate` samples from a model, `score` measures bits per byte of a text, `chat` answers
    training        `datasets`, `loop`, `checkpoint`, `run_folder`, `report`; `train`, `sft`, `preferences`, `rewards`
    school          `drills` plants bugs and finds them, `assign` makes papers, `roster` reads class lists
    formats         a run as Hugging Face's folder or a GGUF file; their Llamas and GPT-2s, and llama2.c's, as a run
    understanding   probes, patching, beliefs about facts, scaling laws
    command         `nanoeuler`: `cli` runs the subcommands, `arguments` parses and explains their options
    pretrained      checkpoints that come with the package
"""

__version__ = "0.2.0"
