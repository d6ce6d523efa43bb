from enum import Enum

import torch


class SubprocPickler:
    pass


class SubprocKind(Enum):
    FORK = "fork"


class SubprocPool:
    def __init__(self, nprocs, pickler=None, kind=SubprocKind.FORK, quiesce=False):
        self.pickler = pickler or SubprocPickler()
        self.arguments = (nprocs, kind, quiesce)


torch.reached("end", globals())
