"""The authenticity matrix: what is said of every attack on every place where the local caches hand out bytes.

A cell is the reason of the refusal, or in words why there is nothing to refuse. The attacks and the places (sinks) are in
tests/authenticity_scenes.py.
"""

from __future__ import annotations

from safecache.reporting.kinds import Reason

ENTRIES = ("aot", "fx")
# These have no miss: a refusal is RefusedArtifactError in default mode too.
AHEAD_OF_TIME = ("function", "model", "graph")
SINKS = (
    *(*ENTRIES, "source", "library", "kernel", *AHEAD_OF_TIME, "precompile", "profile", "memo"),
    *("package", "extension"),
)

NO_SEAL = "a source has no seal: it is compared with what was generated, as in the row 'no tag'"
BYTES = "its caller reads it, from wherever: safecache gets bytes, and trusts their seal alone"
SAME_BYTES = "the bytes that were verified are the ones that are used: what lies there since is not read again"
ON_THE_CPU = "Inductor's C++ runs on the CPU, whatever the GPU"
NAMED = "Triton names a kernel by the architecture that it is for"
CARRIED = "a package is made to be carried elsewhere: torch compares what it was compiled for with what is there"
STABLE = "its interface to torch is stable: what it was built with may be another release"
LINKED = "what a hub has downloaded is a link: what it leads to is verified"
NOT_EXECUTED = "nothing of it is executed: what it says is as good on another GPU and with another torch"

Cell = Reason | str


def _row(usual: Cell, *, ahead_of_time: Cell | None = None, **others: Cell) -> dict[str, Cell]:
    special = others | (dict.fromkeys(AHEAD_OF_TIME, ahead_of_time) if ahead_of_time is not None else {})
    return {sink: special.get(sink, usual) for sink in SINKS}


MATRIX: dict[str, dict[str, Cell]] = {
    "no tag": _row(Reason.UNSEALED, source=Reason.DAMAGED),
    "other content": _row(Reason.DAMAGED, source=NO_SEAL),
    "unknown key": _row(Reason.UNKNOWN_KEY, source=NO_SEAL),
    "secret of another key": _row(Reason.BAD_SEAL, source=NO_SEAL),
    "revoked key": _row(Reason.REVOKED_KEY, source=NO_SEAL),
    "expired key": _row(Reason.EXPIRED_KEY, source=NO_SEAL),
    "other cache key": _row(Reason.OTHER_CACHE_KEY, source=NO_SEAL),
    "other kind": _row(Reason.OTHER_KIND, source=NO_SEAL),
    "other namespace": _row(Reason.OTHER_NAMESPACE, source=NO_SEAL),
    "other GPU": _row(
        Reason.OTHER_GPU,
        source=NO_SEAL,
        library=ON_THE_CPU,
        kernel=NAMED,
        profile=NOT_EXECUTED,
        memo=NOT_EXECUTED,
        package=CARRIED,
        extension=ON_THE_CPU,
    ),
    "other build": _row(
        Reason.OTHER_BUILD,
        source=NO_SEAL,
        library=Reason.OUTDATED,
        profile=NOT_EXECUTED,
        memo=NOT_EXECUTED,
        package=STABLE,
        extension=Reason.OUTDATED,
    ),
    "older format": _row(Reason.UNKNOWN_FORMAT, source=NO_SEAL),
    "format byte": _row(Reason.UNKNOWN_FORMAT, source=NO_SEAL),
    "truncated tag": _row(Reason.DAMAGED, source=NO_SEAL),
    "symbolic link": _row(Reason.NOT_A_FILE, ahead_of_time=BYTES, package=LINKED),
    "hard link": _row(Reason.OTHER_CACHE_KEY, source=Reason.DAMAGED),
    "foreign owner": _row(Reason.FOREIGN_OWNER, ahead_of_time=BYTES),
    # What is trusted by its seal alone is so in private mode too.
    "open ancestor": _row(Reason.UNSEALED, source=Reason.DAMAGED, aot=Reason.NOT_PRIVATE, fx=Reason.NOT_PRIVATE),
    "swap": _row(
        SAME_BYTES,
        ahead_of_time=BYTES,
        library=Reason.DAMAGED,
        kernel=Reason.DAMAGED,
        precompile=Reason.DAMAGED,
        profile=Reason.DAMAGED,
        # Its record is under a name of its own, and what is loaded is what was found good before.
        extension=Reason.UNSEALED,
    ),
}
