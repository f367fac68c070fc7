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
