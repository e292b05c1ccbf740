"""What binders of several ops use, and what the calls of a plan share. Begin with `calls`."""
