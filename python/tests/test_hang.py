"""Which ranks hold a job up."""

import json

import pytest

import rankscope


def dump(rank, last, op="nccl:all_reduce"):
    """A dump of a rank of two that called `last` operations and ended all but the fifth."""
    entry = {
        "record_id": 4,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 5,
        "p2p_seq_id": 0,
        "op_id": 5,
        "profiling_name": op,
        "time_created_ns": 1_758_610_505_880_883_597,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "started",
        "retired": False,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 17}],
    }
    status = {"last_enqueued_collective": last, "last_started_collective": last, "last_completed_collective": 4}
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": status},
        "entries": [entry] if last == 5 else [],
    }


def test_the_rank_that_did_not_call_is_the_culprit(tmp_path):
    for rank, last in enumerate([5, 4]):
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump(rank, last)))
    found = rankscope.hang(tmp_path)
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.fault, culprit.op, culprit.seq) == (1, "host", "allreduce", 5)
    assert (culprit.waiting, culprit.bytes, "train.py:17" in culprit.source_line) == ([0], 4096, True)
    assert found.waits_for == {0: [1]} and found.device_stuck == found.deadlocks == found.ranks_not_read == []
    (wait,) = found.waits
    assert (wait.waiting, wait.waits_for, wait.why) == ([0], [1], "not_called")
    assert found.data["culprits"] == [1]


def test_a_rank_without_a_dump_is_an_answer(tmp_path):
    (tmp_path / "nccl_trace_rank_0.json").write_text(json.dumps(dump(0, 5)))
    found = rankscope.hang(tmp_path)
    assert [(culprit.rank, culprit.fault) for culprit in found.culprits] == [(1, "not_read")]
    assert found.ranks_not_read == [1]


def test_a_pickle_that_wants_a_class_is_refused(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(rankscope.RankscopeError) as caught:
        rankscope.hang(tmp_path)
    assert "nccl_trace_rank_0" in str(caught.value)
    with pytest.raises(rankscope.RankscopeError, match="no such file"):
        rankscope.hang(tmp_path / "missing")
