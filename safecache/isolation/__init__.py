"""Run Triton's compiler in separate processes: client, workers, protocol and crash reports.

A feature: it may import the core, and no other feature.
"""
