"""Attention in three steps, and a room for each system that changes them.

`attention` has the three steps, `multi_head` standard attention, `system` what a system says of
itself; read these first. Then each folder, or file, is a paper: its layer, its numerics, its
training, and what it declares: presets, ablations, words of reports.
"""
