"""Apply and remove hooks on symbols of torch, Triton and servers.

May import the packages up to launchers.
"""
