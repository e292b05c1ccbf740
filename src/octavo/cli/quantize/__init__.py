"""`octavo quantize`, `convert`, `imatrix` and `calibrate`. Begin with `command`."""
