from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flexspec.codegen.cpu.native import NativeUnavailable, build, default_cache_dir
from flexspec.codegen.cpu.native.library import load_library


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: object) -> Path:
    """Sources that compile in no time."""
    sources = tmp_path / "kernels"
    sources.mkdir()
    (sources / "flexspec.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", sources)
    return sources


def test_compiled_once(small_source: Path, tmp_path: Path) -> None:
    first = build.build_library(tmp_path / "cache")
    changed = first.stat().st_mtime_ns
    assert build.build_library(tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == changed
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [first.name]


def test_corrupt_entry_is_rebuilt(small_source: Path, tmp_path: Path) -> None:
    entry = build.build_library(tmp_path / "cache")
    intact = entry.read_bytes()
    entry.write_bytes(intact[:-100])
    assert build.build_library(tmp_path / "cache").read_bytes() == intact


def test_foreign_entry_is_not_used(small_source: Path, tmp_path: Path) -> None:
    entry = build.build_library(tmp_path / "cache")
    key = entry.name.split("-")[0]
    foreign = entry.with_name(f"{key}-{'0' * 64}.so")
    foreign.write_bytes(b"not ours")
    assert build.build_library(tmp_path / "cache") == entry
    entry.unlink()
    assert build.build_library(tmp_path / "cache") == entry


def test_two_at_once(small_source: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        entries = set(pool.map(build.build_library, [tmp_path / "cache"] * 3))
    assert set((tmp_path / "cache").iterdir()) == entries


def test_key_follows_source_and_flags(small_source: Path, tmp_path: Path) -> None:
    entries = {build.build_library(tmp_path / "cache"), build.build_library(tmp_path / "cache", flags=(*build.FLAGS, "-DOTHER"))}
    (small_source / "flexspec.cpp").write_text('extern "C" int answer() { return 43; }\n')
    entries.add(build.build_library(tmp_path / "cache"))
    assert len(entries) == 3


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler found"):
        load_library(tmp_path / "cache")


def test_failing_compilation_says_why(small_source: Path, tmp_path: Path) -> None:
    (small_source / "flexspec.cpp").write_text("#error out of order\n")
    with pytest.raises(build.NativeBuildError, match="out of order"):
        build.build_library(tmp_path / "cache")


def test_unwritable_cache(small_source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeUnavailable, match="file"):
        build.build_library(tmp_path / "file" / "cache")


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "codegen"
