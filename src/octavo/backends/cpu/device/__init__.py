"""The machine's memory: how much a model takes, large pages, and how fast it is read. Begin with `memory`."""
