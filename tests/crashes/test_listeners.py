"""A listener of Triton's hears of what the service has compiled as of a compile, with its times."""

from __future__ import annotations

from crashes import tuning_scenes


def test_listener_hears_of_a_compile_and_then_of_a_hit(home):
    first = home.run(tuning_scenes.listen, names=["sound", "sound"])
    assert first.stats["compiled in isolation"] == 1, first.stats
    [compiled, hit] = first.result["heard"]
    assert compiled[:2] == ["scale", False] and hit[:2] == ["scale", True] and hit[4:] == compiled[4:]
    assert compiled[2] == ["ttir", "ttgir", "llir", "ptx", "cubin"] and compiled[3] is True and hit[2] == []
    assert len(set(first.result["hashes"])) == 1


def test_listener_hears_the_same_in_stock(home):
    ours = home.run(tuning_scenes.listen, names=["sound"])
    stock = home.run(
        tuning_scenes.listen,
        names=["sound"],
        env={"SAFECACHE": "0", "TRITON_CACHE_DIR": str(home.base / "other")},
    )
    assert ours.result == stock.result


def test_listener_hears_of_a_file_of_ir(home):
    heard = home.run(tuning_scenes.listen_to_ir).result  # of the kernel, and then of the file; twice
    assert [hit for _, hit in heard] == [False, False, True, True]
