"""`octavo serve`: its options, and what requests have where they don't say. Begin with `command`."""
