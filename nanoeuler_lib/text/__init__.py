"""Prepare text for a model: tokenizers, reading files, documents and batches, conversations, token shards on disk."""
