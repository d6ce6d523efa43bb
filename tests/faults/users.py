"""Real users of one cache, each with keys and temporary files of his own."""

from __future__ import annotations

import os
import shutil
import subprocess

from scenes import model_scenes

GROUP = 4242


def as_user(uid: int, gid: int | None = None) -> list[str]:
    """Prefix a command to run as a user whom modes bind in all but reading: root may have installed Python for himself."""
    capability = "-all,+dac_read_search"
    return [
        *("setpriv", f"--reuid={uid}", f"--regid={uid if gid is None else gid}", "--clear-groups"),
        *(f"--inh-caps={capability}", f"--ambient-caps={capability}", "--no-new-privs"),
    ]


def other_users_can_be() -> bool:
    """Whether a process may become another user and read what root has."""
    possible = os.getuid() == 0 and shutil.which("setpriv") is not None
    return possible and subprocess.run([*as_user(4711), "true"]).returncode == 0


class User:
    """``uid``, a member of GROUP, whose umask lets the group write."""

    def __init__(self, home, uid: int) -> None:
        self.home = home
        self.uid = uid
        self.base = home.base / str(uid)
        self.base.mkdir()
        os.chown(self.base, uid, uid)

    def run(self, scene=model_scenes.compile_model, *, env=None, umask=0o002, **how):
        own = {"XDG_CONFIG_HOME": str(self.base / "config"), "TMPDIR": str(self.base)}
        return self.home.run(scene, env=own | (env or {}), user=(self.uid, GROUP), umask=umask, **how)


def share_key(home) -> None:
    """One key for all in GROUP, as ``SAFECACHE_KEY_FILE``."""
    path = home.base / "shared.key"
    path.write_text("k" * 64)
    os.chown(path, 0, GROUP)
    path.chmod(0o440)
    home.environment["SAFECACHE_KEY_FILE"] = str(path)


def share_directory(path, mode=0o2775) -> None:
    path.mkdir()
    os.chown(path, 0, GROUP)
    path.chmod(mode)


def owners(root) -> set[int]:
    return {path.lstat().st_uid for path in root.rglob("*")}
