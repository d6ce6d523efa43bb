"""Activation reads the settings, and a bad one fails it without harm."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("SAFECACHE", "maybe", "1/true/yes/on or 0/false/no/off"),
        ("SAFECACHE_STRICT", "2", "1/true/yes/on or 0/false/no/off"),
        ("SAFECACHE_TRUST", "everybody", "signed, private or shared"),
        ("SAFECACHE_KEY_FILE", "here.key", "an absolute path"),
    ],
)
def test_bad_setting_fails_the_import_by_name_value_and_what_is_allowed(fake, variable, value, allowed):
    said = fake(
        """
        try:
            import safecache
        except ValueError as error:
            print(type(error).__name__, error)
        """,
        **{variable: value},
    )
    (line,) = said.lines
    assert line.startswith("ConfigError ")
    for part in (variable + "=", repr(value), allowed):
        assert part in line


def test_bad_setting_fails_a_later_activation_and_leaves_the_hooks_as_they_are(fake):
    said = fake(
        """
        import os
        import safecache, torch
        import_all()
        os.environ["SAFECACHE_STRICT"] = "2"
        try:
            safecache.activate()
        except ValueError:
            pass
        else:
            raise AssertionError("accepted")
        torch.failures["_save_graph"] = OSError("no")
        sys.modules[CODECACHE].FxGraphCache._save_graph("key", None, [], True, None)
        assert all_are("active"), states()
        """,
        loud=True,
    )
    assert len(said.warnings) == 1, said.errors


def test_activating_reads_the_settings_anew(fake):
    fake(
        """
        import os
        import safecache, torch
        import_all()
        torch.failures["_save_graph"] = OSError("no")
        os.environ["SAFECACHE_STRICT"] = "1"
        sys.modules[CODECACHE].FxGraphCache._save_graph("key", None, [], True, None)
        safecache.activate()
        try:
            sys.modules[CODECACHE].FxGraphCache._save_graph("key", None, [], True, None)
        except Exception as error:
            assert type(error).__name__ == "UnpicklableEntryError", error
        else:
            raise AssertionError("not strict")
        """,
        loud=True,
    )
