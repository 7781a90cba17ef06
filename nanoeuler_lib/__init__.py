"""NanoEuler: a GPT-2-class language model by hand, and the book that derives it.

How text flows through the rooms of this house:

    files, text   `world` tells stories, `data` reads files and draws batches, `tokenizer` makes text tokens
    model         `config` is its shape, `model` its parameters, forward and backward, `ops` the layers (`reference`:
                  the truth, `cpu`: fast), `plan` their buffers; `gradcheck` asks whether each gradient is a slope
    training      `optim` moves the weights, `step` spreads a step over cores, `train` and `sft` are the runs, `watch`
                  sees what goes wrong, `run_folder` and `checkpoint` keep what survives a kill, `report` draws it
    speaking      `generate` samples from the model, `chat` answers, `evaluate` and `ngram` say how good it is
    the command   `cli` does, `arguments` explains, `files` writes and shows, `errors` says it in one line
    a GPU         `engine` is the model there: parameters, plan, step, decoder, run as lists of launches that `ops.gpu`
                  writes from `kernels`; `cuda` compiles, checks and launches these; `device` chooses where a model runs
    beside        `drills` plants bugs and finds them, `plots` is the book's look, `practice` says what is wrong with a
                  reader's answer
"""

__version__ = "0.1.0"
