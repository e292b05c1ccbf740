"""`octavo inspect`: what is in a file or folder, and whether it runs here. Begin with `command`."""
