"""Compare the information in a model's activations with the source's exact distribution. Chapter 18.

`activations` returns the residual stream. `posteriors` computes the posterior of a fact given the text so far, and
`probes` fits probes that predict it from activations. `twins` makes counterfactual pairs, `edits` intervenes on the
residual stream, and `answers` scores methods against a benchmark.
"""
