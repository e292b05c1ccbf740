"""Tests of the CPU backend on 64-bit Arm, under qemu: `.ci/arm` prepares and starts them."""
