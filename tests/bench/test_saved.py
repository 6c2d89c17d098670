"""Files of earlier results, and files that are none."""

import json
from pathlib import Path

import pytest

from bench_results import bench_result
from flexspec.bench.result_json import results_to_json
from flexspec.bench.saved import load_results
from flexspec.errors import UsageError


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    with pytest.raises(UsageError, match=r"--compare '.*old\.json' can't be read \(No such file"):
        load_results(path, "--compare")
    whole = results_to_json([bench_result()])
    for text, message in (
        (json.dumps(whole)[:-40], "is not JSON"),
        ("[1]", "is not a benchmark's result"),
        ('{"rows": []}', "is not a benchmark's result"),
        (json.dumps(whole | {"version": 2}), "is a result of version 2, and this flexspec reads version 1"),
        (json.dumps(whole | {"results": []}), r"is a damaged benchmark's result \(ValueError: no results\): measure anew"),
        (json.dumps(whole | {"results": {"a": 1}}), "is a damaged benchmark's result"),
        ("\N{SNOWMAN}", "is not JSON"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=rf"--compare '.*old\.json' {message}"):
            load_results(path, "--compare")
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="is not JSON"):
        load_results(path, "--compare")
    path.write_text(json.dumps(whole))
    assert load_results(path, "--load") == [bench_result()]
