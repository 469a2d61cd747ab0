"""Attention in three steps, and a package for each system that changes them.

`attention` has the three steps and standard attention, `system` what a system says of itself; read
these first. Then each folder is a paper: its layer, its numerics, its training, its words.
"""
