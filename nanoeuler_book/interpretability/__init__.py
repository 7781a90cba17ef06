"""Compare what a model knows with the source's exact distribution. Chapter 18.

`activations` reads the residual stream, `posteriors` says what a reader of the prefix may believe of a fact not told
yet, `probes` reads it from the activations; `twins`, `edits` and `answers` change a model's mind and score who tries.
"""
