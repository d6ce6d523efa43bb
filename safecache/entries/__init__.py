"""What torch looks up and saves: verified before it is unpickled, sealed where it is pickled.

May import the rooms up to store.
"""
