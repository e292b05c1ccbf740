"""The kernels of the CPU backend, by what they compute; each is made for constants that it is compiled with."""
