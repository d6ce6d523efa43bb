"""The form of each finding of `safecache doctor`: what a person reads, and the line to paste."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable

from safecache.doctor.finding import Finding
from safecache.errors import make_printable

SUBJECTS = "AOTInductor|Ed25519|Inductor's|Python.h|Redis|SafeCache|Triton|[A-Z_]+=|[A-Z]+_[A-Z_]+|[a-z0-9/]"
FORM = re.compile(
    rf"(?:{SUBJECTS}).*? \[(?P<code>[a-z-]+)\]: (?P<why>.+?)\.( Help: (?P<help>.+?))?( \(see (?P<see>.+)\))?"
)
COMMANDS = {
    *("apk", "apt-get", "chmod", "dnf", "env", "export", "find", "install", "ldconfig", "ls", "mount", "mv"),
    *("nvidia-smi", "pacman", "pip", "python", "rm", "safecache", "timedatectl", "timeout", "ulimit", "umask"),
    *("unset", "zypper"),
}


def to_row(found: Finding) -> dict[str, str]:
    """As the command prints it in JSON."""
    return found._asdict() | {"evidence": found.evidence, "text": found.text}


def check_form(findings: Iterable[dict[str, str]]) -> None:
    """SUBJECT STATE [code]: CAUSE. CONSEQUENCE. Help: ACTION (see the section of the code)."""
    remedies = []
    for each in findings:
        said = FORM.fullmatch(make_printable(each["text"]))
        assert said and said["code"] == each["code"], each
        assert each["evidence"].endswith(".") and ".. " not in each["text"], each
        assert (said["see"] or "") == ("" if each["severity"] == "ok" else f"safecache help doctor#{each['code']}"), (
            each
        )
        assert (said["help"] or "") == each["remedy"], each
        if each["severity"] in ("warning", "error"):
            assert re.search(r"\. [A-Z`]", each["why"]), f"no consequence: {each}"
            assert each["remedy"], each
        if each["remedy"]:
            assert shlex.split(each["remedy"], comments=True)[0] in COMMANDS, each
            remedies.append(each["remedy"])
    done = subprocess.run(["bash", "-n"], input="\n".join(remedies), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, ""), remedies
