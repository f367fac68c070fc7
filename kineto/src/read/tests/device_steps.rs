//! Steps that only ranges on devices mark.

use trace::rank::Kind;

use crate::meaning::device_steps::NOTE;
use crate::read::tests::rank_from_events;

/// A job whose host launches a kernel every 10 µs, on two streams in turn. A step has four kernels, which run
/// 100 µs later.
fn events(steps: &[i32], with_launches: bool) -> String {
    let mut events = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        for kernel in 0..4 {
            let (launch, stream) = (40 * at + 10 * kernel, 7 + kernel % 2);
            let correlation = 4 * at + kernel + 1;
            if with_launches {
                events.push(format!(
                    r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{launch},"dur":5,"args":{{"correlation":{correlation}}}}}"#
                ));
            }
            events.push(format!(
                r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":{stream},"ts":{},"dur":8,"args":{{"device":0,"stream":{stream},"correlation":{correlation}}}}}"#,
                launch + 100
            ));
        }
        for stream in [7, 8] {
            let start = 40 * at + 100 + 10 * (stream - 7);
            events.push(format!(
                r#"{{"ph":"X","cat":"gpu_user_annotation","name":"ProfilerStep#{step}","pid":0,"tid":{stream},"ts":{start},"dur":28,"args":{{"device":0,"stream":{stream}}}}}"#
            ));
        }
    }
    events.join(",\n")
}

fn found(events: &str) -> (Vec<(i32, i64, i64)>, Vec<i32>, bool) {
    let data = rank_from_events(events);
    let steps = data.outline.steps.iter().map(|s| (s.step, s.start_ns / 1_000, s.end_ns / 1_000)).collect();
    let of_kernels = (0..data.events.len()).filter(|row| data.events.kind[*row] == Kind::Kernel);
    let kernels = of_kernels.map(|row| data.events.step[row]).collect();
    (steps, kernels, data.omissions.iter().any(|omission| *omission.what == *NOTE.0))
}

#[test]
fn ranges_on_devices_mark_steps_from_their_first_launch() {
    let kernels = |steps: &[i32]| steps.iter().flat_map(|step| [*step; 4]).collect::<Vec<_>>();
    let (steps, of_kernels, is_said) = found(&events(&[3, 4, 6], true));
    assert_eq!(steps, [(3, 0, 40), (4, 40, 80), (6, 80, 218)], "the last range ends at 80 + 100 + 10 + 28");
    assert_eq!((of_kernels, is_said), (kernels(&[3, 4, 6]), true));
    let (steps, of_kernels, is_said) = found(&events(&[3, 4], false));
    assert_eq!(steps, [(3, 100, 140), (4, 140, 178)], "without launches, the ranges are the steps");
    assert_eq!((of_kernels, is_said), (kernels(&[3, 4]), true));
}

#[test]
fn the_steps_of_the_host_count_where_there_are_some() {
    let host = r#"{"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":1,"tid":1,"ts":0,"dur":35},"#;
    let (steps, _, is_said) = found(&format!("{host}\n{}", events(&[3, 4], true)));
    assert_eq!((steps, is_said), (vec![(3, 0, 35)], false));
}
