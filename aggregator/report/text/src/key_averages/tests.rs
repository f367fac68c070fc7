//! Snapshots at the widths that terminals have.

use super::*;

fn row(name: &str, calls: i64, cpu_us: i64, device_us: i64) -> Average {
    Average {
        name: name.into(),
        calls,
        cpu_time_total_ns: cpu_us * 2_000,
        self_cpu_time_total_ns: cpu_us * 1_000,
        device_time_total_ns: device_us * 1_500,
        self_device_time_total_ns: device_us * 1_000,
        cpu_memory_usage_bytes: Some(4 * cpu_us),
        self_cpu_memory_usage_bytes: Some(-3 * cpu_us),
        device_memory_usage_bytes: Some(device_us << 20),
        self_device_memory_usage_bytes: Some(device_us << 10),
        flops: None,
        ..Average::default()
    }
}

/// A table with every column that torch knows.
fn table(group_by: GroupBy) -> KeyAverages {
    let group = match group_by {
        GroupBy::Name => "",
        GroupBy::InputShape => "[[128, 1024], [1024, 4096], []]",
        GroupBy::Module => "Net_0.Linear_1",
        GroupBy::Stack => "torch/nn/modules/linear.py(125): forward;train.py(31): step",
    };
    let mut rows = vec![
        row("aten::addmm", 96, 12_345, 0),
        row("ProfilerStep*", 3, 2_000_000, 0),
        row("nccl:all_reduce", 6, 500, 0),
        row("ampere_sgemm_128x64_tn_with_a_very_long_name_that_does_not_fit_anywhere<float, 128>", 96, 0, 90_000),
        row("evil\u{1b}[31m", 1, 1, 0),
    ];
    rows[0].flops = Some(103_079_215_104);
    rows[2].is_async = true;
    rows[3].on_device = true;
    rows.iter_mut().take(2).for_each(|row| row.group = group.into());
    KeyAverages {
        rank: 3,
        device: Some("CUDA"),
        group_by,
        steps: Some((2, 5)),
        self_cpu_time_total_ns: rows.iter().map(|r| r.self_cpu_time_total_ns).sum(),
        self_device_time_total_ns: 90_000_000,
        rows,
    }
}

fn check(group_by: GroupBy, width: usize, name: &str) {
    let style = TableStyle { width: Some(width), colour: false, rows: Some(4) };
    let text = render(&table(group_by), Some(("self_cuda_time_total", SortKey::SelfDeviceTimeTotal)), &style);
    for line in text.lines() {
        assert!(line.chars().count() <= width, "{} columns: {line:?}", line.chars().count());
    }
    insta::assert_snapshot!(name, text);
}

#[test]
fn at_60_columns() {
    check(GroupBy::Name, 60, "at_60");
}

#[test]
fn at_80_columns() {
    check(GroupBy::Name, 80, "at_80");
}

#[test]
fn at_120_columns() {
    check(GroupBy::Module, 120, "at_120");
}

#[test]
fn at_100_columns() {
    check(GroupBy::InputShape, 100, "at_100");
}

#[test]
fn at_200_columns() {
    check(GroupBy::Stack, 200, "at_200");
}

#[test]
fn names_cannot_send_terminal_commands_and_files_have_all_columns() {
    let text = render(&table(GroupBy::Module), None, &TableStyle { width: None, colour: false, rows: None });
    assert!(
        !text.contains('\u{1b}') && text.contains("Net_0.Linear_1") && !text.contains("Left out, because"),
        "{text}"
    );
    assert!(
        text.lines().nth(1).is_some_and(|titles| titles.contains("Self CUDA Mem") && titles.contains("Total GFLOPs"))
    );
}

/// Without a device, memory, shapes and FLOPs, torch has none of their columns.
#[test]
fn what_was_not_recorded_has_no_column() {
    let rows = vec![Average { name: "a".into(), calls: 2, self_cpu_time_total_ns: 1_500, ..Average::default() }];
    let table = KeyAverages { self_cpu_time_total_ns: 1_500, rows, ..KeyAverages::default() };
    let text = render(&table, None, &TableStyle { width: None, colour: false, rows: None });
    insta::assert_snapshot!(text, @r#"
        rank 0: by name
          Name  Self CPU %  Self CPU  CPU total %  CPU total  CPU time avg  # of Calls
          a        100.00%   1.500us        0.00%    0.000us       0.000us           2
        Self CPU time total: 1.500us
    "#);
    let empty = render(&KeyAverages::default(), None, &TableStyle { width: None, colour: false, rows: None });
    assert_eq!(empty, "rank 0: by name\n  nothing was recorded\n");
}
