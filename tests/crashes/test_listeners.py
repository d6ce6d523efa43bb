"""A listener of Triton's hears of what the service has compiled as of a compile, with its times."""

from __future__ import annotations

from crashes import tuning_scenes


def test_listener_hears_of_a_compile_and_then_of_a_hit_as_in_stock(home):
    ours = home.run(tuning_scenes.listen)
    assert ours.stats["compiled in isolation"] == 2, ours.stats
    kernel, file, kernel_again, file_again = ours.result["heard"]
    for compiled, hit in ((kernel, kernel_again), (file, file_again)):
        assert (compiled[1], hit[1]) == (False, True) and hit[4:] == compiled[4:]
        assert compiled[2][-4:] == ["ttgir", "llir", "ptx", "cubin"] and hit[2] == []
    assert kernel[0] == "scale" and kernel[2][0] == "ttir" and kernel[3] is True
    first, second = ours.result["compiled"]
    assert first == second
    env = {"SAFECACHE": "0", "TRITON_CACHE_DIR": str(home.base / "other")}
    assert home.run(tuning_scenes.listen, env=env).result == ours.result
