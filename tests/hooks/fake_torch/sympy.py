"""In place of the real one, which takes longer to import than all else in such an interpreter."""
