//! Steps, memory, devices and arrows of whole traces.

use trace::rank::{Kind, NO_STEP, NONE};

use crate::read::tests::{rank_from_bytes, rank_from_events, rank_from_text};

/// Between steps.
const BETWEEN: i32 = -1;

/// ```text
/// host    |-- step 3 --| launch |-- step 4 --|
///           l1 ─                   l2 ─
/// device  k0 ──  k1 ─────          k2 ──
/// ```
#[test]
fn device_rows_have_the_step_of_their_launch() {
    let data = rank_from_events(
        r#"
        {"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","pid":1,"tid":1,"ts":0,"dur":100},
        {"ph":"X","cat":"user_annotation","name":"ProfilerStep#4","pid":1,"tid":1,"ts":200,"dur":100},
        {"ph":"X","cat":"user_annotation","name":"ProfilerStep#4","pid":1,"tid":2,"ts":400,"dur":100},
        {"ph":"X","cat":"cuda_runtime","name":"l1","pid":1,"tid":1,"ts":10,"dur":5,"args":{"correlation":1}},
        {"ph":"X","cat":"cuda_runtime","name":"l2","pid":1,"tid":1,"ts":210,"dur":5,"args":{"correlation":2}},
        {"ph":"X","cat":"cpu_op","name":"gap","pid":1,"tid":1,"ts":150,"dur":5},
        {"ph":"X","cat":"kernel","name":"k0","pid":0,"tid":7,"ts":0,"dur":5,"args":{"correlation":9}},
        {"ph":"X","cat":"kernel","name":"k1","pid":0,"tid":7,"ts":110,"dur":5,"args":{"correlation":1}},
        {"ph":"X","cat":"kernel","name":"k2","pid":0,"tid":7,"ts":250,"dur":5,"args":{"correlation":2}}"#,
    );
    let step = |name: &str| {
        let row = (0..data.events.len()).find(|r| &*data.names[data.events.name[*r] as usize] == name).unwrap();
        data.events.step[row]
    };
    assert_eq!((step("l1"), step("l2"), step("gap")), (3, 4, BETWEEN));
    assert_eq!((step("k0"), step("k1"), step("k2")), (NO_STEP, 3, 4));
    assert_eq!(data.outline.steps.len(), 2);
    assert!(data.omissions.iter().any(|o| o.what.contains("ProfilerStep") && o.amount == Some(1)));
}

#[test]
fn memory_devices_and_arrows_are_read() {
    let data = rank_from_text(
        r#"{"deviceProperties": [{"id": 1, "name": "GPU", "numSms": 80, "totalGlobalMem": 5}], "traceEvents": [
        {"ph":"X","cat":"cpu_op","name":"fwd","pid":1,"tid":1,"ts":1,"dur":2},
        {"ph":"X","cat":"cpu_op","name":"bwd","pid":1,"tid":2,"ts":5,"dur":2},
        {"ph":"X","cat":"cpu_op","name":"linear","pid":1,"tid":1,"ts":7.5,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"addmm","pid":1,"tid":1,"ts":7.6,"dur":0.3},
        {"ph":"s","id":7,"pid":1,"tid":1,"ts":1,"cat":"fwdbwd","name":"fwdbwd"},
        {"ph":"f","id":7,"pid":1,"tid":2,"ts":5,"cat":"fwdbwd","name":"fwdbwd","bp":"e"},
        {"ph":"s","id":8,"pid":1,"tid":1,"ts":1,"cat":"fwdbwd","name":"fwdbwd"},
        {"ph":"i","s":"t","name":"[memory]","pid":1,"tid":1,"ts":9,"args":{"Device Type":1,"Device Id":1,"Addr":3,"Bytes":-4,"Total Allocated":6,"Total Reserved":8}},
        {"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":1,"tid":1,"ts":8,"args":{"Device Type":0,"Device Id":-1,"Bytes":4}},
        {"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":9}]}"#,
    );
    assert_eq!(data.devices.len(), 1);
    assert_eq!((data.devices[0].device_id, data.devices[0].sm_count), (1, Some(80)));
    let memory: Vec<_> = data
        .memory
        .iter()
        .map(|m| (m.ts_ns, m.device_id, m.delta_bytes, m.allocated_bytes, m.name.as_deref()))
        .collect();
    assert_eq!(memory, [(8000, None, 4, None, Some("linear")), (9000, Some(1), -4, Some(6), None)]);
    let flows: Vec<_> = data.flows.iter().map(|f| (f.id, f.src_id, f.dst_id)).collect();
    assert_eq!(flows, [(7, 0, 1)]);
    let left_out: Vec<_> = data.omissions.iter().map(|o| (o.what.to_string(), o.amount)).collect();
    assert_eq!(left_out, [("memory events".to_string(), Some(1)), ("arrows".to_string(), Some(1))]);
}

/// The process is the device. Copies without a stream are in none.
#[test]
fn rows_of_mtia_devices_are_kernels_copies_and_waits() {
    let data = rank_from_events(
        r#"
        {"ph":"X","cat":"mtia_runtime","name":"runFunction","pid":1,"tid":1,"ts":1,"dur":2,"args":{"correlation":18}},
        {"ph":"X","cat":"mtia_ccp_events","name":"add","pid":9,"tid":40,"ts":5,"dur":3,"args":{"correlation":18,"stream":102}},
        {"ph":"X","cat":"mtia_ccp_events","name":"pe_exe","pid":9,"tid":40,"ts":6,"dur":2,"args":{"stream":102}},
        {"ph":"X","cat":"mtia_ccp_events","name":"dma_request","pid":9,"tid":80,"ts":8,"dur":1,"args":{"size":16}},
        {"ph":"X","cat":"mtia_ccp_events","name":"event_wait","pid":9,"tid":40,"ts":9,"dur":1,"args":{"stream":102}}"#,
    );
    let events = &data.events;
    let rows: Vec<_> = (0..events.len()).map(|r| (events.kind[r], events.device[r], events.stream[r])).collect();
    let host = |kind| (kind, NONE, NONE);
    let on_device = [(Kind::Kernel, 9, 102), (Kind::GpuMemcpy, 9, NONE), (Kind::Sync, 9, 102)];
    assert_eq!(rows, [host(Kind::Runtime), on_device[0], host(Kind::Other), on_device[1], on_device[2]]);
    assert_eq!(events.correlation[1], 18);
}

/// HIP names a stream by its address, and Kineto writes all 64 bits of it.
#[test]
fn streams_beyond_32_bits_stay_apart() {
    let kernel = |n: usize, stream: &str| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":{stream},"ts":{n},"dur":1,"args":{{"device":0,"stream":{stream}}}}}"#
        )
    };
    let streams =
        ["94012345678901", "7", "94012345678902", "\"0x55d0c0ffee00\"", "18446744073709551615", "-2147483647", "0"];
    let expected = [94_012_345_678_901, 7, 94_012_345_678_902, 0x55d0_c0ff_ee00, -1, -2_147_483_647, 0];
    let events: Vec<String> = (0..70).map(|n| kernel(n, streams[n % 7])).collect();
    for block in [1 << 16, 300] {
        let data = rank_from_bytes(format!("[{}]", events.join(",")).into_bytes(), block);
        assert_eq!(data.events.stream, expected.repeat(10));
        assert!(data.omissions.is_empty(), "{:?}", data.omissions);
    }
    // Without the argument, the thread is the stream; a name of a thread is none.
    let data = rank_from_events(
        r#"{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":94012345678901,"ts":1,"dur":1},
        {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":"stream of mine","ts":2,"dur":1}"#,
    );
    assert_eq!(data.events.stream, [94_012_345_678_901, NONE]);
}

/// What is left out of a rank, and how much.
fn omitted(data: &trace::rank::RankData) -> Vec<(String, Option<i64>, bool)> {
    data.omissions.iter().map(|o| (o.what.to_string(), o.amount, o.kind == trace::OmissionKind::Lost)).collect()
}

#[test]
fn events_that_nobody_reads_are_counted_by_their_category() {
    let data = rank_from_events(
        r#"
        {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":1},
        {"ph":"X","cat":"warp_drive","name":"engage","pid":0,"tid":7,"ts":2,"dur":1},
        {"ph":"X","cat":"my_host_rows","name":"h","pid":5,"tid":7,"ts":2,"dur":1},
        {"ph":"X","name":"no category","pid":5,"tid":7,"ts":3,"dur":1},
        {"ph":"X","cat":"cuda_profiler_range","name":"r","pid":0,"tid":7,"ts":4,"dur":1},
        {"ph":"X","cat":"Trace","name":"PyTorch Profiler (0)","pid":"Spans","tid":"PyTorch Profiler","ts":4,"dur":1},
        {"ph":"C","name":"sm__cycles","pid":0,"ts":4,"args":{"v":1}},
        {"ph":"b","cat":"a","name":"async","id":1,"pid":5,"tid":7,"ts":4},
        {"ph":"e","cat":"a","name":"async","id":1,"pid":5,"tid":7,"ts":5},
        {"ph":"O","name":"object","id":1,"pid":5,"ts":5},
        {"ph":"M","name":"process_name","pid":5,"ts":0,"args":{"name":"python"}},
        {"ph":"i","name":"Iteration Start","pid":5,"tid":1,"ts":5,"s":"g"},
        {"ph":"s","cat":"ac2g","name":"ac2g","id":1,"pid":5,"tid":7,"ts":5}"#,
    );
    let expected = [
        ("asynchronous events", 2, true),
        ("events of other phases", 1, true),
        ("rows without a category", 1, true),
        ("rows of cuda_profiler_range", 1, false),
        ("counter events", 1, false),
        ("rows of warp_drive", 1, true),
    ];
    assert_eq!(omitted(&data), expected.map(|(what, amount, is_lost)| (what.to_string(), Some(amount), is_lost)));
}

/// Each message is caused on purpose.
#[test]
fn messages_say_what_happened() {
    let why =
        |text: &str| rank_from_text(text).omissions.iter().map(|o| o.why.to_string()).collect::<Vec<_>>().join("; ");
    let event = |ts: &str| {
        format!(r#"{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":1,"args":{{"x":[1]}}}}"#)
    };
    assert_eq!(why(&format!("[{}]", event("1700000000000000000"))), "their ts is in ns since 1970, and traces have µs");
    assert_eq!(why(&format!("[{}]", event("\"later\""))), "they have no readable ts");
    let whole = event("1");
    let cut = format!("[{whole},{}", &whole[..40]);
    assert!(why(&cut).ends_with("the file ends inside an event"), "{}", why(&cut));
    // Two braces are missing in the middle: the file goes on behind them.
    let stack = r#"{"ph":"X","cat":"python_function","name":"f","pid":1,"tid":1,"ts":1,"dur":1,"args":{"x":{"y":1"#;
    let unclosed = format!("[{whole},{stack}}},{whole},{whole}]");
    let expected = format!(
        "from byte {} of the JSON text on: the event that begins here has no end, and others follow it",
        whole.len() + 2
    );
    assert_eq!(why(&unclosed), expected);
}

/// The processes of torch_npu's `trace_view.json` tell what its rows without a category are.
#[test]
fn rows_of_ascend_devices_are_kernels_and_collectives() {
    let data = rank_from_events(
        r#"
        {"ph":"M","name":"process_name","pid":9,"args":{"name":"Ascend Hardware"}},
        {"ph":"M","name":"process_name","pid":8,"args":{"name":"Communication"}},
        {"ph":"M","name":"process_name","pid":7,"args":{"name":"CANN"}},
        {"ph":"X","cat":"cpu_op","name":"ProfilerStep#4","pid":1,"tid":1,"ts":"1","dur":100},
        {"ph":"X","name":"AscendCL@aclnnMatmul","pid":7,"tid":1,"ts":"2","dur":2},
        {"ph":"X","name":"MatMulV2","pid":9,"tid":2,"ts":"5","dur":3},
        {"ph":"X","name":"EVENT_WAIT","pid":9,"tid":2,"ts":"9","dur":3},
        {"ph":"X","name":"MEMCPY_ASYNC","pid":9,"tid":3,"ts":"10","dur":3},
        {"ph":"X","name":"hcom_allReduce__680_0_1","pid":8,"tid":4,"ts":"20","dur":30},
        {"ph":"X","name":"Notify_Wait","pid":8,"tid":5,"ts":"21","dur":3}"#,
    );
    let events = &data.events;
    let on_device = (0..events.len()).filter(|row| events.device[*row] == 0);
    let rows: Vec<_> = on_device.map(|row| (events.kind[row], events.stream[row], events.is_comm[row])).collect();
    assert_eq!(rows, [(Kind::Kernel, 2, false), (Kind::GpuMemcpy, 3, false), (Kind::Kernel, 4, true)]);
    let [collective] = &data.outline.collectives[..] else { panic!("{:?}", data.outline.collectives) };
    assert_eq!((&*collective.op, collective.step()), ("allreduce", Some(4)));
    assert_eq!(omitted(&data), [("rows without a category".to_string(), Some(3), false)]);
}
