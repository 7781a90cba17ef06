"""Text on its way to a model: bytes to tokens, files to documents and batches, turns and examples, shards on disk."""
