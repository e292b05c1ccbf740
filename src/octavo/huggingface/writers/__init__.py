"""How quantized modules are written into checkpoints: a file for each layout, the inverses of those in `layouts/`."""

from octavo.huggingface.writers.writer_table import WRITERS, Writer, find_writer

__all__ = ["WRITERS", "Writer", "find_writer"]
