"""`octavo bench` and `octavo profile`. Begin with `command`."""
