"""What a model knows, held against the source's exact law, and what few models say of larger ones. Chapters 18 and 19.

`activations` reads the residual stream, `posteriors` says what a reader of the prefix may believe of a fact not told
yet, `probes` reads it from the activations; `twins`, `edits` and `answers` change a model's mind and score who tries.
`scaling` fits power laws, whose floor the source knows.
"""
