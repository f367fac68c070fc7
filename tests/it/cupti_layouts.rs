//! Sizes and offsets of every record of CUPTI that is read, by release.
//!
//! The sizes are `sizeof` of the struct that each release's `cupti_activity.h` uses for the kind, compiled for x86-64
//! from the headers in NVIDIA's wheels: `nvidia-cuda-cupti-cu12` 12.4.127, 12.5.82, 12.6.80, 12.8.90 and 12.9.79,
//! `nvidia-cuda-cupti` 13.0.85, 13.1.115, 13.2.86, 13.3.75, 13.4.92 and 13.5.25. (There is no CUDA 12.7.)

use sources::cupti::layout::{LAYOUTS, Version};
use sources::cupti::record::{Parsed, Walk, layout_of, parse};
use stand_in_cupti::records::{RECORDS, size};

/// `(release, cuptiGetVersion)`, in the order of the columns below.
const RELEASES: [(&str, u32); 11] = [
    ("12.4", 22),
    ("12.5", 23),
    ("12.6", 24),
    ("12.8", 26),
    ("12.9", 28),
    ("13.0", 130_001),
    ("13.1", 130_101),
    ("13.2", 130_202),
    ("13.3", 130_301),
    ("13.4", 130_401),
    ("13.5", 130_500),
];

/// `(kind, struct of each change, bytes in each release)`.
#[rustfmt::skip]
const SIZES: &[(u32, &str, [usize; 11])] = &[
    //                                                           12.4 12.5 12.6 12.8 12.9 13.0 13.1 13.2 13.3 13.4 13.5
    (10, "Kernel9 Kernel10 Kernel11 Kernel12 Kernel13",         [208, 208, 208, 208, 208, 216, 224, 224, 232, 248, 248]),
    (1,  "Memcpy5 Memcpy6 Memcpy7",                             [ 88,  88,  88,  96,  96,  96,  96,  96,  96, 112, 112]),
    (22, "MemcpyPtoP4",                                         [ 96,  96,  96,  96,  96,  96,  96,  96,  96,  96,  96]),
    (2,  "Memset4 Memset5",                                     [ 88,  88,  88,  88,  88,  88,  88,  88,  88, 104, 104]),
    (5,  "API",                                                 [ 40,  40,  40,  40,  40,  40,  40,  40,  40,  40,  40]),
    (39, "ExternalCorrelation",                                 [ 24,  24,  24,  24,  24,  24,  24,  24,  24,  24,  24]),
    (17, "Overhead3",                                           [ 56,  56,  56,  56,  56,  56,  56,  56,  56,  56,  56]),
    (38, "Synchronization Synchronization2",                    [ 40,  40,  40,  56,  56,  56,  56,  56,  56,  56,  56]),
    (12, "Marker2",                                             [ 56,  56,  56,  56,  56,  56,  56,  56,  56,  56,  56]),
    (13, "MarkerData MarkerData2",                              [ 32,  32,  32,  32,  32,  40,  40,  40,  40,  40,  40]),
    (49, "Memory3 Memory4",                                     [120, 120, 128, 128, 128, 128, 128, 128, 128, 128, 128]),
    (8,  "Device5 Device6",                                     [184, 184, 184, 184, 184, 184, 184, 192, 192, 192, 192]),
    (9,  "Context2 Context3 Context4",                          [ 24,  32,  32,  32,  32,  32,  40,  40,  40,  40,  40]),
    (37, "Stream",                                              [ 24,  24,  24,  24,  24,  24,  24,  24,  24,  24,  24]),
    (11, "Name",                                                [ 32,  32,  32,  32,  32,  32,  32,  32,  32,  32,  32]),
];

/// Offsets of the fields of the oldest layouts and of later fields, from `gdb` (`ptype /o`) for the structs of 13.5.25.
/// Fields have the names of the stand-in's structs, whose offsets the compiler computes.
#[rustfmt::skip]
const OFFSETS: &[(&str, &[(&str, usize)])] = &[
    ("Kernel13", &[
        ("registers_per_thread", 6), ("start", 16), ("end", 24), ("device_id", 40), ("context_id", 44), ("stream_id", 48),
        ("grid_x", 52), ("grid_y", 56), ("grid_z", 60), ("block_x", 64), ("block_y", 68), ("block_z", 72),
        ("static_shared_memory", 76), ("dynamic_shared_memory", 80), ("correlation_id", 92), ("name", 104),
        ("graph_node_id", 144), ("graph_id", 156), ("cluster_x", 176), ("cluster_y", 180), ("cluster_z", 184),
        ("is_device_launched", 208), ("priority", 216),
    ]),
    ("Memcpy7", &[
        ("copy_kind", 4), ("src_kind", 5), ("dst_kind", 6), ("flags", 7), ("bytes", 8), ("start", 16), ("end", 24),
        ("device_id", 32), ("context_id", 36), ("stream_id", 40), ("correlation_id", 44), ("graph_node_id", 64),
        ("graph_id", 72), ("copy_count", 88),
    ]),
    ("MemcpyPtoP4", &[
        ("copy_kind", 4), ("src_kind", 5), ("dst_kind", 6), ("flags", 7), ("bytes", 8), ("start", 16), ("end", 24),
        ("device_id", 32), ("context_id", 36), ("stream_id", 40), ("src_device_id", 44), ("dst_device_id", 52),
        ("correlation_id", 60), ("graph_node_id", 72), ("graph_id", 80),
    ]),
    ("Memset5", &[
        ("value", 4), ("bytes", 8), ("start", 16), ("end", 24), ("device_id", 32), ("context_id", 36), ("stream_id", 40),
        ("correlation_id", 44), ("flags", 48), ("memory_kind", 50), ("graph_node_id", 64), ("graph_id", 72),
    ]),
    ("API", &[
        ("kind", 0), ("callback_id", 4), ("start", 8), ("end", 16), ("process_id", 24), ("thread_id", 28),
        ("correlation_id", 32), ("return_value", 36),
    ]),
    ("ExternalCorrelation", &[("external_kind", 4), ("external_id", 8), ("correlation_id", 16)]),
    ("Overhead3", &[
        ("overhead_kind", 4), ("object_kind", 8), ("process_id", 12), ("thread_id", 16), ("start", 24), ("end", 32),
        ("correlation_id", 40),
    ]),
    ("Synchronization2", &[
        ("sync_kind", 4), ("start", 8), ("end", 16), ("correlation_id", 24), ("context_id", 28), ("stream_id", 32),
        ("event_id", 36), ("return_value", 48),
    ]),
    ("Marker2", &[
        ("flags", 4), ("timestamp", 8), ("id", 16), ("object_kind", 20), ("process_id", 24), ("thread_id", 28),
        ("name", 40), ("domain", 48),
    ]),
    ("MarkerData2", &[("flags", 4), ("id", 8), ("payload_kind", 12), ("payload", 16), ("color", 24), ("category", 28)]),
    ("Memory4", &[
        ("operation", 4), ("memory_kind", 8), ("correlation_id", 12), ("address", 16), ("bytes", 24), ("timestamp", 32),
        ("process_id", 48), ("device_id", 52), ("context_id", 56), ("stream_id", 60), ("name", 64),
    ]),
    ("Device6", &[
        ("memory_bandwidth_kbs", 8), ("memory_bytes", 16), ("threads_per_warp", 32), ("core_clock_khz", 36),
        ("multiprocessors", 44), ("warps_per_multiprocessor", 52), ("blocks_per_multiprocessor", 56),
        ("shared_memory_per_multiprocessor", 60), ("registers_per_multiprocessor", 64), ("capability_major", 104),
        ("capability_minor", 108), ("id", 112), ("uuid", 120), ("name", 136), ("is_mig_enabled", 145), ("mig_uuid", 160),
    ]),
    ("Context4", &[("context_id", 4), ("device_id", 8), ("null_stream_id", 14)]),
    ("Stream", &[("context_id", 4), ("stream_id", 8), ("priority", 12)]),
    ("Name", &[("object_kind", 4), ("object_id", 8), ("name", 24)]),
];

/// Invariant (recorder): The layouts of CUPTI's records are those of its releases.
#[test]
fn every_record_has_the_size_of_its_release() {
    for (kind, structs, sizes) in SIZES {
        let layout = layout_of(*kind).unwrap();
        let names: Vec<&str> = layout.sizes.iter().map(|size| size.name).collect();
        assert_eq!(names, structs.split_whitespace().collect::<Vec<_>>());
        let stand_in = RECORDS.iter().find(|record| record.1 == *kind).unwrap();
        for ((release, version), bytes) in RELEASES.iter().zip(sizes) {
            assert_eq!(layout.size(Version(*version)).unwrap().bytes, *bytes, "{structs} in {release}");
            assert_eq!(size(stand_in.2, *version), *bytes, "the stand-in's {structs} in {release}");
            assert_eq!(Version(*version).release().as_deref(), Some(*release));
        }
        assert!(layout.sizes.is_sorted_by_key(|size| (size.since, size.bytes)), "records only grow");
    }
    assert_eq!(LAYOUTS.len(), SIZES.len(), "every record that is read is in the table");
    assert_eq!((layout_of(3).unwrap().kinds, layout_of(4).unwrap().kinds), (&[3, 10][..], &[4, 5][..]));
}

/// Invariant (recorder): The layouts of CUPTI's records are those of its releases.
#[test]
fn every_field_has_the_offset_of_the_header() {
    for ((name, offsets), (kind, ..)) in OFFSETS.iter().zip(SIZES) {
        let layout = layout_of(*kind).unwrap();
        let read: Vec<(&str, usize)> = layout.fields.iter().map(|field| (field.name, field.offset)).collect();
        assert_eq!(read, *offsets, "{name}");
        let (_, _, _, laid_out, bytes) = RECORDS.iter().find(|record| record.0 == *name).unwrap();
        assert_eq!(*bytes, layout.sizes.last().unwrap().bytes, "sizeof of {name}");
        for field in layout.fields {
            let (_, offset, bytes) = laid_out.iter().find(|(name, ..)| *name == field.name).unwrap();
            // A uuid has 16 bytes; the stand-in stores it as two numbers.
            let bytes = if field.name.ends_with("uuid") { 2 * bytes } else { *bytes };
            assert_eq!((field.offset, field.bytes), (*offset, bytes), "{name}.{}", field.name);
            let first = layout.size(field.since).unwrap();
            assert!(field.offset + field.bytes <= first.bytes, "{name}.{} lies in {}", field.name, first.name);
        }
    }
    assert_eq!(OFFSETS.len(), SIZES.len());
}

/// Every byte of a record has its own value, so that a field with a wrong offset or width has a wrong value.
#[test]
fn every_field_is_read_from_its_own_bytes_if_the_version_has_it() {
    for (release, version) in RELEASES {
        for (kind, name, _) in SIZES {
            let layout = layout_of(*kind).unwrap();
            let bytes = layout.size(Version(version)).unwrap().bytes;
            let mut record: Vec<u8> = (0..bytes).map(|at| at as u8 ^ 0x80).collect();
            record[..4].copy_from_slice(&kind.to_ne_bytes());
            let Parsed::Record(read) = parse(&record, Version(version)) else { panic!("{name} of {release}") };
            let said = format!("{read:?}");
            for field in layout.fields.iter().filter(|field| field.name != "kind" && !field.name.ends_with("uuid")) {
                let at = field.offset..field.offset + field.bytes;
                let has = field.since <= Version(version);
                let value = has.then(|| match field.bytes {
                    1 => i128::from(record[at.start]),
                    2 => i128::from(u16::from_ne_bytes(record[at].try_into().unwrap())),
                    4 => i128::from(u32::from_ne_bytes(record[at].try_into().unwrap())),
                    _ => i128::from(u64::from_ne_bytes(record[at].try_into().unwrap())),
                });
                let signed = value.map(|value| value - (1 << 32));
                let printed = |value: i128| format!(" {}: {value}", field.name);
                let optional = |value: i128| format!(" {}: Some({value})", field.name);
                let found = match value {
                    None => said.contains(&format!(" {}: None", field.name)),
                    Some(value) => [Some(value), signed]
                        .into_iter()
                        .flatten()
                        .any(|value| said.contains(&printed(value)) || said.contains(&optional(value))),
                };
                assert!(found, "{name} of {release}: {} should be {value:?} in {said}", field.name);
            }
        }
    }
}

#[test]
fn a_buffer_of_all_records_is_iterated_in_every_release() {
    for (release, version) in RELEASES {
        let mut buffer = Vec::new();
        let mut expected = Vec::new();
        for (kind, ..) in SIZES {
            expected.push(buffer.len());
            let bytes = layout_of(*kind).unwrap().size(Version(version)).unwrap().bytes;
            buffer.extend(kind.to_ne_bytes());
            buffer.resize(buffer.len() - 4 + bytes, 0);
        }
        let starts: Vec<usize> = Walk::new(&buffer, Version(version)).map(|(at, _)| at).collect();
        assert_eq!(starts, expected, "{release}");
    }
}
