"""Which symbols of torch and Triton are hooked, and how hooks are put on and taken off.

May import the rooms up to launchers.
"""
