"""`octavo eval` and `octavo report`. Begin with `command`."""
