"""One module for each of torch's and Triton's: what they call is translated into ours, and nothing else is done here.

May import any room but the command line.
"""

from safecache import features

__all__ = ["features"]

features.plug()
