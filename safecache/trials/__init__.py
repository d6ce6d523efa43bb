"""The first run of what was loaded from a cache: what a process has died in, the next one sets aside."""
