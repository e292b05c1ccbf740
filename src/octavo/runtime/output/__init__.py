"""What a reply's tokens come to: text, its end, and whether the model is still thinking. Begin with `reply`."""
