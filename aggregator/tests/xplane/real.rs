//! Every real profile, decoded once more by a decoder of the test: events per plane and line, and what is not read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use formats::xplane::XplaneSource;
use model::source::Source;
use model::{NONE, RankData};

fn files() -> Vec<PathBuf> {
    fn walk(folder: &std::path::Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                walk(&entry, found);
            } else if entry.to_string_lossy().ends_with(".xplane.pb") {
                found.push(entry);
            }
        }
    }
    let mut found = Vec::new();
    walk(&fixtures::data::real_traces().join("xplane"), &mut found);
    found.sort();
    found
}

/// The fields of a message: numbers, and bytes of those that have some.
fn fields(bytes: &[u8]) -> Option<Vec<(u64, u64, &[u8])>> {
    let mut found = Vec::new();
    let mut at = 0;
    let varint = |at: &mut usize| {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = *bytes.get(*at)?;
            *at += 1;
            value |= u64::from(byte & 127).checked_shl(shift)?;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    };
    while at < bytes.len() {
        let tag = varint(&mut at)?;
        let mut value = 0;
        let length = match tag & 7 {
            0 => {
                value = varint(&mut at)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut at)?).ok()?,
            5 => 4,
            _ => return None,
        };
        found.push((tag >> 3, value, bytes.get(at..at.checked_add(length)?)?));
        at += length;
    }
    Some(found)
}

/// A line as the decoder sees it.
#[derive(Debug)]
struct Line {
    plane: String,
    name: String,
    id: i64,
    events: usize,
    aggregated: usize,
}

/// All lines of a file; `None` if it is damaged.
fn lines(bytes: &[u8]) -> Option<Vec<Line>> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found = Vec::new();
    for (_, _, plane) in fields(bytes)?.into_iter().filter(|(field, ..)| *field == 1) {
        let plane = fields(plane)?;
        let name = plane.iter().find(|(field, ..)| *field == 2).map(|(_, _, name)| text(name)).unwrap_or_default();
        for (_, _, line) in plane.iter().filter(|(field, ..)| *field == 3) {
            let mut of_line = Line { plane: name.clone(), name: String::new(), id: 0, events: 0, aggregated: 0 };
            for (field, value, bytes) in fields(line)? {
                match field {
                    1 => of_line.id = value.cast_signed(),
                    2 => of_line.name = text(bytes),
                    4 => {
                        let is_aggregated = fields(bytes)?.iter().any(|(field, ..)| *field == 5);
                        of_line.aggregated += usize::from(is_aggregated);
                        of_line.events += usize::from(!is_aggregated);
                    }
                    _ => {}
                }
            }
            found.push(of_line);
        }
    }
    Some(found)
}

/// Events of devices by device and line, and of threads by thread. An event that several ranks have counts once.
fn read(data: &[RankData]) -> (BTreeMap<(i64, i64), usize>, BTreeMap<i64, usize>) {
    let mut of_devices: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    let mut events: BTreeMap<(i64, i64, i64, &str), usize> = BTreeMap::new();
    for rank in data {
        let mut of_rank: BTreeMap<(i64, i64, i64, &str), usize> = BTreeMap::new();
        let rows = &rank.events;
        for row in 0..rows.len() {
            if rows.thread[row] == NONE {
                *of_devices.entry((rows.device[row], rows.stream[row])).or_default() += 1;
            } else {
                let name = &*rank.names[rows.name[row] as usize];
                *of_rank.entry((rows.thread[row], rows.ts_ns[row], rows.dur_ns[row], name)).or_default() += 1;
            }
        }
        for (event, count) in of_rank {
            let most = events.entry(event).or_default();
            *most = count.max(*most);
        }
    }
    let mut of_threads: BTreeMap<i64, usize> = BTreeMap::new();
    events.into_iter().for_each(|((thread, ..), count)| *of_threads.entry(thread).or_default() += count);
    (of_devices, of_threads)
}

/// Invariant (formats): XPlane: each plane and line has the events that an independent decoder counts.
#[test]
#[ignore = "reads real traces"]
fn events_per_plane_and_line_are_those_of_an_independent_decoder() {
    for path in files() {
        let Some(lines) = lines(&std::fs::read(&path).unwrap()) else {
            assert!(XplaneSource::open(std::slice::from_ref(&path)).is_err(), "{} is damaged", path.display());
            continue;
        };
        let source = XplaneSource::open(std::slice::from_ref(&path)).unwrap();
        let ranks: Vec<RankData> = source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect();
        let shown = path.display();
        for data in &ranks {
            assert!(data.omissions.iter().all(|omission| &*omission.kind != "lost"), "{shown}: {:?}", data.omissions);
        }
        let (of_devices, of_threads) = read(&ranks);
        let (mut devices, mut threads) = (BTreeMap::new(), BTreeMap::new());
        let (mut left_out, mut aggregated) = (0, 0);
        for line in &lines {
            let device = ["/device:GPU:", "/device:TPU:"].iter().find_map(|prefix| line.plane.strip_prefix(prefix));
            let device = device.and_then(|number| number.split(' ').next()?.parse::<i64>().ok());
            let stream =
                line.name.strip_prefix("Stream #").and_then(|name| name.split('(').next()?.parse::<i64>().ok());
            let is_tpu = line.plane.contains("TPU");
            let is_read = match &*line.name {
                "Steps" | "XLA Modules" | "XLA TraceMe" | "Sparse Core Modules" | "Sparse Core Steps" => true,
                "XLA Ops" | "Async XLA Ops" | "Sparse Core Ops" => is_tpu,
                _ => stream.is_some() && !is_tpu,
            };
            match device {
                Some(device) if is_read => {
                    *devices.entry((device, stream.unwrap_or(line.id))).or_default() += line.events;
                    aggregated += line.aggregated;
                }
                Some(_) => left_out += line.events + line.aggregated,
                None if line.plane.starts_with("/host:") && line.plane != "/host:metadata" => {
                    *threads.entry(line.id).or_default() += line.events;
                }
                None => {}
            }
        }
        devices.retain(|_, count| *count > 0);
        threads.retain(|_, count| *count > 0);
        assert_eq!(of_devices, devices, "{shown}");
        assert_eq!(of_threads, threads, "{shown}");
        let said = |what: &str| {
            let omissions = ranks.iter().flat_map(|data| &data.omissions).filter(|omission| &*omission.what == what);
            omissions.filter_map(|omission| omission.amount).sum::<i64>()
        };
        assert_eq!(said("events of other lines"), left_out as i64, "{shown}");
        if threads.is_empty() {
            assert_eq!(said("events"), aggregated as i64, "{shown}");
        }
    }
}

/// The numbers of the profile that the project knows.
#[test]
#[ignore = "reads real traces"]
fn a_known_profile_gives_known_numbers() {
    let Some(path) = files().into_iter().find(|path| path.ends_with("mi300_jax_conv8.xplane.pb")) else { return };
    let source = XplaneSource::open(&[path]).unwrap();
    assert_eq!(source.ranks(), (0..8).collect::<Vec<_>>());
    let ranks: Vec<RankData> = source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect();
    let of_device = |data: &RankData| data.events.kind.iter().filter(|kind| kind.is_device_work()).count();
    assert_eq!(ranks.iter().map(of_device).collect::<Vec<_>>(), [60, 25, 25, 25, 25, 25, 25, 25]);
    let launched = |data: &RankData| {
        let launches = trace::rank::Launches::collect(&data.events);
        let work = (0..data.events.len()).filter(|row| data.events.kind[*row].is_device_work());
        work.filter(|row| launches.of(data.events.correlation[*row]).is_some()).count()
    };
    assert_eq!(ranks.iter().map(launched).collect::<Vec<_>>(), [60, 25, 25, 25, 25, 25, 25, 25]);
    assert_eq!(ranks[0].outline.info.host, "tw003");
}
