"""`octavo pull`, `list` and `rm`, and where commands find models. Begin with `pull`."""
