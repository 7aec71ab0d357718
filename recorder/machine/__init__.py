"""Samples the machine in another process: CPU, memory, disk, network, GPU."""
