"""Architectures that read a text as a whole, for embeddings and rerankers: a file each. Begin with `bert`."""
