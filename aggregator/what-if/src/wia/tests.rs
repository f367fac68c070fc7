//! The authors' results for the traces of their jobs, and a small pipeline whose slowdown is known.

use std::fs;

use fixtures::data::real_traces;
use serde_json::Value;

use super::operations::{Columns, OpType, Operations};
use super::*;

/// Collects the numbers of `theirs` that `ours` lacks or has differently, and counts all.
fn compare(theirs: &Value, ours: &Value, path: &str, count: &mut usize, wrong: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (key, value) in theirs {
                compare(value, ours.get(key).unwrap_or(&Value::Null), &format!("{path}/{key}"), count, wrong);
            }
        }
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            *count += 1;
            if (a - b).abs() > 1e-4 * a.abs() {
                wrong.push(format!("{path}: {a} is {b}"));
            }
        }
        _ if theirs == ours => {}
        _ => wrong.push(format!("{path}: {theirs} is {ours}")),
    }
}

fn as_published(name: &str, numbers: usize) {
    let folder = real_traces().join("straggler");
    let trace = folder.join(format!("trace-{name}.parquet"));
    let slowdown = analyze(&trace, &folder.join(format!("meta-{name}.yaml")), Room::unlimited()).unwrap();
    assert!(slowdown.replay_error.abs() < 1e-6, "{}", slowdown.replay_error);
    let ours = serde_json::to_value(&slowdown).unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for (file, ours) in [("result", &ours), ("mw", &ours["mw"]), ("ms", &ours["ms"])] {
        let text = fs::read(folder.join(format!("{file}-{name}.json"))).unwrap();
        let mut theirs: Value = serde_json::from_slice(&text).unwrap();
        for again in ["Mw", "Ms"] {
            theirs.as_object_mut().unwrap().remove(again);
        }
        compare(&theirs, ours, file, &mut count, &mut wrong);
    }
    assert_eq!((count, wrong), (numbers, Vec::new()));
}

#[test]
#[ignore = "reads real traces"]
fn a_job_with_a_slow_stage_has_the_published_slowdowns() {
    as_published("AR", 1_096);
}

#[test]
#[ignore = "reads real traces"]
fn a_job_with_a_long_last_stage_has_the_published_slowdowns() {
    as_published("ST", 742);
}

/// Two stages, two replicas, two microbatches; the computation of stage 1 takes `slow` times as long.
///
/// ```text
///   stage 0   F0 F1 . . B0 . B1
///   stage 1   . F0 B0 F1 B1
/// ```
fn pipeline(slow: f64) -> Columns {
    use OpType::{
        BackwardCompute, BackwardRecv, BackwardSend, ClipMainGrad, EmbeddingAllReduce, ForwardCompute, ForwardRecv,
        ForwardSend, Gc, GradsReduceScatter, LayernormAllReduce, Optimizer, ParamsAllGather,
    };
    let mut columns = Columns::default();
    let mut add = |key: [i64; 4], optype: OpType, seq: i64, chunk: i64, [start_s, end_s]: [f64; 2]| {
        let [dp_rank, stage, step, _] = key;
        let values = [dp_rank, stage, stage * 2 + dp_rank, step, seq, chunk, if chunk < 0 { -1 } else { stage }];
        columns.integers.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        columns.optype.push(optype);
        columns.start_s.push(start_s);
        columns.duration_s.push(end_s - start_s);
    };
    for step in 0..3 {
        for dp in 0..2 {
            let f = 1.0 * slow;
            // The times at which the passes of each stage end, without delays and with transfers of no length.
            let forward_0 = [1.0, 2.0];
            let (mut free_s, mut ends) = (0.0_f64, [[0.0; 2]; 2]);
            for microbatch in 0..2 {
                let start_s = free_s.max(forward_0[microbatch]);
                ends[0][microbatch] = start_s + f;
                ends[1][microbatch] = ends[0][microbatch] + f;
                free_s = ends[1][microbatch];
            }
            let [forward_1, backward_1] = ends;
            let mut free_s = forward_0[1];
            let backward_0 = backward_1.map(|ready_s| {
                free_s = free_s.max(ready_s) + 1.0;
                free_s
            });
            let tail_s = backward_0[1].max(backward_1[1]);
            for stage in 0..2 {
                let key = [dp, stage, step, 0];
                add(key, ParamsAllGather, 0, 0, [0.0, 0.0]);
                let (forward, backward, length) =
                    if stage == 0 { (forward_0, backward_0, 1.0) } else { (forward_1, backward_1, f) };
                for at in 0..2 {
                    let seq = at as i64;
                    add(key, ForwardCompute, seq, 0, [forward[at] - length, forward[at]]);
                    add(key, BackwardCompute, seq, 0, [backward[at] - length, backward[at]]);
                    let (send, recv) =
                        if stage == 0 { (ForwardSend, BackwardRecv) } else { (BackwardSend, ForwardRecv) };
                    let (sent_s, received_s) =
                        if stage == 0 { (forward[at], backward_1[at]) } else { (backward[at], forward_0[at]) };
                    add(key, send, seq, -1, [sent_s, sent_s]);
                    add(key, recv, seq, -1, [received_s, received_s]);
                }
                let after_s = backward[1];
                add(key, Gc, 0, -1, [after_s, after_s]);
                add(key, LayernormAllReduce, 0, -1, [after_s, after_s]);
                add(key, EmbeddingAllReduce, 0, -1, [after_s, tail_s]);
                add(key, GradsReduceScatter, 0, 0, [tail_s, tail_s]);
                add(key, ClipMainGrad, 0, -1, [tail_s, tail_s]);
                add(key, Optimizer, 0, -1, [tail_s, tail_s + 1.0]);
            }
        }
    }
    columns
}

fn meta() -> JobMeta {
    JobMeta { dp_size: 2, pp_size: 2, tp_size: 1, dsp_size: 1, vpp_size: 1, world_size: 4, ..JobMeta::default() }
}

fn measured(columns: &Columns) -> Result<Slowdown, String> {
    let operations = Operations::of(columns, &meta())?;
    let dependencies = dependencies::Dependencies::of(&operations, &meta())?;
    let replay = replay::Replay::of(&operations, &dependencies)?;
    Ok(slowdown::measure(meta(), &operations, &dependencies, &replay))
}

#[test]
fn a_slow_stage_is_the_slowdown_of_a_pipeline() {
    let balanced = measured(&pipeline(1.0)).unwrap();
    assert!((balanced.blocking_slowdown - 1.0).abs() < 1e-9, "{}", balanced.blocking_slowdown);
    assert_eq!(balanced.blocking_decompose_by_stage, None, "nothing to divide");
    let slow = measured(&pipeline(3.0)).unwrap();
    let by_stage = slow.blocking_decompose_by_stage.unwrap().0;
    assert_eq!(by_stage[0].0, "1");
    assert!(by_stage[0].1 > 1.2 && by_stage[1].1 <= 1.0, "{by_stage:?}");
    assert!(slow.ms.rem > 0.9, "the last stage is all of it: {:?}", slow.ms);
    assert!(slow.replay_error.abs() < 1e-9, "{}", slow.replay_error);
}

#[test]
fn a_trace_that_is_no_pipeline_is_refused() {
    let refused = |change: &dyn Fn(&mut Columns), why: &str| {
        let mut columns = pipeline(2.0);
        change(&mut columns);
        let said = measured(&columns).map(|_| ()).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    let remove = |columns: &mut Columns, is_one: &dyn Fn(OpType) -> bool| {
        for row in (0..columns.optype.len()).rev().filter(|row| is_one(columns.optype[*row])).collect::<Vec<_>>() {
            columns.integers.iter_mut().for_each(|column| {
                column.remove(row);
            });
            columns.optype.remove(row);
            columns.start_s.remove(row);
            columns.duration_s.remove(row);
        }
    };
    refused(&|c| remove(c, &|_| true), "the trace has no rows");
    refused(&|c| c.integers[0].iter_mut().for_each(|dp| *dp += 7), "its meta file says 2 and 2");
    refused(&|c| c.integers[0][0] = -1, "data-parallel ranks");
    refused(&|c| c.integers[3][0] = i64::MAX, "some are missing or twice there");
    refused(&|c| c.integers[4][0] = 7, "some are missing or twice there");
    refused(&|c| c.start_s[0] = f64::NAN, "has no time");
    refused(&|c| remove(c, &|optype| optype == OpType::Gc), "the trace has no gc 0 of stage 0");
    refused(&|c| remove(c, &|optype| optype == OpType::ForwardSend), "has no other side");
    refused(&|c| c.optype.swap(1, 2), "");
}
