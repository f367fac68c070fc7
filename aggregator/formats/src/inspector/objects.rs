//! The objects of a dump: one for each operation of a communicator that ended.
//!
//! ```text
//!  {"header":{"id":"0x7f8c496ae9f661","comm_name":"unknown","rank":2,"n_ranks":8,"nnodes":1},
//!   "metadata":{"dump_timestamp_us":1748030377748202,"hostname":"node-a","pid":1639453,…},
//!   "coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,…}}
//! ```
//!
//! The plugin writes an object a line; a tool may have written each over several lines. From format v4.1 on, an object with `dump_stats` comes
//! before those of a communicator, and says how many follow and how many were dropped; from v4.3 on, those that follow have no `header`
//! and no `metadata` of their own. Sources: `inspector_json.cc` and `inspector_json_reader.py` of NCCL.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The longest object. One with the times of 64 channels has 20 kB.
const MAX_OBJECT_BYTES: usize = 1 << 20;
/// The most lines of an object that is written over several; the text is read again for each of them.
const MAX_LINES: usize = 2048;

/// An operation that ended.
#[derive(Debug)]
pub(super) struct Object<'a> {
    pub(super) header: &'a Header<'a>,
    pub(super) metadata: &'a Metadata<'a>,
    pub(super) coll_perf: &'a Operation<'a>,
}

/// Any object of a dump.
#[derive(Deserialize)]
struct AnyObject<'a> {
    #[serde(borrow, default)]
    header: Option<Header<'a>>,
    #[serde(borrow, default)]
    metadata: Option<Metadata<'a>>,
    #[serde(borrow, default, alias = "p2p_perf")]
    coll_perf: Option<Operation<'a>>,
    #[serde(default)]
    dump_stats: Option<Stats>,
    /// The work of NCCL's proxy for an operation. It is not read.
    #[serde(default)]
    proxy_trace: Option<IgnoredAny>,
}

/// The objects of a communicator that follow, and the operations that found no room in the plugin's ring.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stats {
    coll_records: u32,
    p2p_records: u32,
    proxy_records: u32,
    coll_dropped_since_last_dump: u32,
    p2p_dropped_since_last_dump: u32,
}

/// The communicator, and the place of the rank in it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Header<'a> {
    /// Hash of the communicator, in hexadecimal.
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) comm_name: Option<Cow<'a, str>>,
    pub(super) rank: i32,
    pub(super) n_ranks: i32,
}

/// The process.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Metadata<'a> {
    #[serde(borrow)]
    pub(super) hostname: Cow<'a, str>,
    pub(super) pid: i64,
}

/// A collective, a send or a receive.
#[derive(Debug, Deserialize)]
pub(super) struct Operation<'a> {
    /// NCCL's name, as in `AllReduce`.
    #[serde(borrow, alias = "p2p")]
    pub(super) coll: Cow<'a, str>,
    #[serde(alias = "p2p_sn")]
    pub(super) coll_sn: i64,
    #[serde(default, alias = "p2p_msg_size_bytes")]
    pub(super) coll_msg_size_bytes: Option<i64>,
    #[serde(borrow, default)]
    pub(super) coll_algo: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) coll_proto: Option<Cow<'a, str>>,
    /// The other side, by its number in the communicator.
    #[serde(default)]
    pub(super) p2p_peer: Option<i32>,
    /// Only with `NCCL_INSPECTOR_DUMP_VERBOSE=1`.
    #[serde(default)]
    pub(super) event_trace_ts: Option<Times>,
}

/// Times in µs of the host's wall clock, when NCCL's threads saw the events; 0 where there was none.
#[derive(Debug, Deserialize)]
pub(super) struct Times {
    #[serde(default, alias = "p2p_start_ts")]
    pub(super) coll_start_ts: i64,
    #[serde(default)]
    pub(super) kernel_events: Vec<Channel>,
}

/// A channel of the operation's kernel.
#[derive(Debug, Deserialize)]
pub(super) struct Channel {
    #[serde(default)]
    pub(super) kernel_start_ts: i64,
    #[serde(default)]
    pub(super) kernel_stop_ts: i64,
}

/// The damage of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Damage {
    /// Objects, or runs of bytes between objects.
    pub(super) objects: i64,
    /// The first byte of the first of them, counted in the text.
    pub(super) first_byte: u64,
    /// Objects that the dump announces and does not have.
    pub(super) missing: i64,
    /// Operations that the plugin dropped.
    pub(super) dropped: i64,
    /// Objects of NCCL's proxy, which are not read.
    pub(super) of_proxy: i64,
    /// Why the file could not be read further.
    pub(super) cut: Option<String>,
}

/// Reads the objects of a file in their order, until `take` returns false. Objects without the parts of an operation count as damage.
///
/// # Errors
/// That of opening the file.
pub(super) fn read(path: &Path, take: impl FnMut(Object<'_>) -> bool) -> io::Result<Damage> {
    Ok(read_from(kineto::open_text(path)?, take))
}

fn read_from(input: impl Read, mut take: impl FnMut(Object<'_>) -> bool) -> Damage {
    let mut announced = Announced::default();
    let mut damage = read_lines(input, &mut |text, damage| announced.parse(text, damage, &mut take));
    damage.missing += i64::from(announced.records);
    damage
}

fn read_lines(input: impl Read, parse: &mut impl FnMut(&[u8], &mut Damage) -> Result<bool, Fault>) -> Damage {
    let (mut input, mut damage) = (BufReader::new(input), Damage::default());
    let (mut text, mut lines, mut at) = (Vec::new(), 0, 0_u64);
    loop {
        let before = text.len();
        let room = MAX_OBJECT_BYTES.saturating_sub(before) as u64;
        if let Err(error) = (&mut input).take(room).read_until(b'\n', &mut text) {
            damage.cut = Some(error.to_string());
            damage.count(at);
            return damage;
        }
        let got = text.len() - before;
        let ends = got == 0 && room > 0;
        lines += 1;
        let found = if text.trim_ascii().is_empty() { Ok(true) } else { parse(&text, &mut damage) };
        match found {
            Ok(true) => {}
            Ok(false) => return damage,
            // More lines may complete the object.
            Err(Fault::Incomplete) if !ends && room > 0 && lines < MAX_LINES => continue,
            Err(_) => {
                damage.count(at);
                // The last line may begin the next object.
                let last = text.split_off(before);
                if before > 0 && !ends && last.starts_with(b"{") {
                    at += before as u64;
                    (text, lines) = (last, 1);
                    match parse(&text, &mut damage) {
                        Ok(true) => {}
                        Ok(false) => return damage,
                        Err(_) => continue,
                    }
                } else {
                    text.extend(last);
                }
            }
        }
        at += text.len() as u64;
        text.clear();
        lines = 0;
        if ends {
            return damage;
        }
    }
}

impl Damage {
    fn count(&mut self, at: u64) {
        if self.objects == 0 {
            self.first_byte = at;
        }
        self.objects += 1;
    }
}

enum Fault {
    /// The text ends inside of the object.
    Incomplete,
    Wrong,
}

/// The objects that a dump has announced and not given yet.
#[derive(Default)]
struct Announced {
    /// Of which communicator and process they are.
    of: Option<(Header<'static>, Metadata<'static>)>,
    /// How many are still to come.
    records: u32,
}

impl Announced {
    /// Gives the operation of a text away. Returns whether more are wanted.
    fn parse(
        &mut self,
        text: &[u8],
        damage: &mut Damage,
        take: &mut impl FnMut(Object<'_>) -> bool,
    ) -> Result<bool, Fault> {
        let object: AnyObject<'_> = match serde_json::from_slice(text) {
            Ok(object) => object,
            Err(error) if error.is_eof() => return Err(Fault::Incomplete),
            Err(_) => return Err(self.damaged(text)),
        };
        let own = object.header.zip(object.metadata);
        if let (Some(stats), Some((header, metadata))) = (&object.dump_stats, &own) {
            damage.missing += i64::from(self.records);
            damage.dropped +=
                i64::from(stats.coll_dropped_since_last_dump) + i64::from(stats.p2p_dropped_since_last_dump);
            let records = [stats.coll_records, stats.p2p_records, stats.proxy_records];
            self.records = records.into_iter().fold(0, u32::saturating_add);
            self.of = Some((header.to_static(), metadata.to_static()));
            return Ok(true);
        }
        let announced = self.of.as_ref().filter(|_| self.records > 0);
        let Some((header, metadata)) = own.as_ref().or(announced) else { return Err(self.damaged(text)) };
        let wanted = match (&object.coll_perf, &object.proxy_trace) {
            (Some(coll_perf), _) => take(Object { header, metadata, coll_perf }),
            (None, Some(_)) => {
                damage.of_proxy += 1;
                true
            }
            (None, None) => return Err(self.damaged(text)),
        };
        self.records = self.records.saturating_sub(1);
        Ok(wanted)
    }

    /// Counts a text that is no object of a dump as one of the announced objects. A damaged text that begins with a header may have
    /// announced objects of another process. The objects after it are then given to no process.
    fn damaged(&mut self, text: &[u8]) -> Fault {
        self.records = self.records.saturating_sub(1);
        if text.trim_ascii_start().starts_with(b"{\"header\"") {
            *self = Self::default();
        }
        Fault::Wrong
    }
}

impl Header<'_> {
    fn to_static(&self) -> Header<'static> {
        let owned = |text: &Cow<'_, str>| Cow::Owned(text.to_string());
        Header { id: owned(&self.id), comm_name: self.comm_name.as_ref().map(owned), ..*self }
    }
}

impl Metadata<'_> {
    fn to_static(&self) -> Metadata<'static> {
        Metadata { hostname: Cow::Owned(self.hostname.to_string()), pid: self.pid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"header":{"id":"0x1f","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"hostname":"a","pid":7},"coll_perf":{"coll":"AllReduce","coll_sn":SN}}"#;

    fn line(number: i64) -> String {
        LINE.replace("SN", &number.to_string()) + "\n"
    }

    /// The numbers that are read, and the damage.
    fn numbers(text: &str) -> (Vec<i64>, i64, u64) {
        let mut numbers = Vec::new();
        let damage = read_from(text.as_bytes(), |object| {
            numbers.push(object.coll_perf.coll_sn);
            true
        });
        (numbers, damage.objects, damage.first_byte)
    }

    #[test]
    fn objects_are_read_a_line_each_or_over_lines() {
        let pretty = line(2).replace(',', ",\n  ").replace('{', "{\n");
        assert_eq!(numbers(&(line(1) + &pretty + "\n\n" + &line(3))), (vec![1, 2, 3], 0, 0));
        assert_eq!(numbers(line(1).trim_end()), (vec![1], 0, 0), "the last line needs no end");
    }

    /// Invariant (formats): NCCL Inspector: damage is counted, and the objects after it are read.
    #[test]
    fn what_is_damaged_is_counted_and_the_next_object_is_read() {
        let first = line(1);
        let half = &line(2)[..40];
        let at = first.len() as u64;
        assert_eq!(numbers(&format!("{first}{half}\n{}", line(3))), (vec![1, 3], 1, at));
        assert_eq!(numbers(&format!("{first}{half}")), (vec![1], 1, at), "cut");
        assert_eq!(numbers(&format!("{first}no JSON\n{}{{}}\n", line(3))), (vec![1, 3], 2, at));
        let long = format!("{{\"header\":\"{}\"\n", "x".repeat(3 << 20));
        let (read, damaged, _) = numbers(&format!("{first}{long}{}", line(3)));
        assert_eq!(read, [1, 3]);
        assert!(damaged >= 1);
    }

    /// The head of a dump of `records` collectives by the process 7, or by `pid`.
    fn head(records: u32, pid: i64, dropped: u32) -> String {
        format!(
            "{{\"header\":{{\"id\":\"0x1f\",\"rank\":2,\"n_ranks\":8,\"nnodes\":1}},\"metadata\":{{\"inspector_output_format_version\":\"v4.3\",\"hostname\":\"a\",\"pid\":{pid}}},\"dump_stats\":{{\"coll_records\":{records},\"coll_dropped_total\":9,\"coll_dropped_since_last_dump\":{dropped},\"p2p_records\":0}}}}\n"
        )
    }

    fn bare(number: i64) -> String {
        format!("{{\"coll_perf\":{{\"coll\":\"AllReduce\",\"coll_sn\":{number}}}}}\n")
    }

    /// The process and the number of each operation, and the damage.
    fn dumped(text: &str) -> (Vec<(i64, i64)>, Damage) {
        let mut found = Vec::new();
        let damage = read_from(text.as_bytes(), |object| {
            found.push((object.metadata.pid, object.coll_perf.coll_sn));
            true
        });
        (found, damage)
    }

    #[test]
    fn operations_are_of_the_process_that_the_dump_announces() {
        let text = head(2, 7, 3) + &bare(1) + &bare(2) + &head(1, 8, 0) + &bare(3);
        let dropped = Damage { dropped: 3, ..Damage::default() };
        assert_eq!(dumped(&text), (vec![(7, 1), (7, 2), (8, 3)], dropped));
        let (found, damage) = dumped(&(head(1, 7, 0) + &line(4) + "{\"proxy_trace\":{}}\n"));
        assert_eq!(
            (found, damage.objects, damage.of_proxy),
            (vec![(7, 4)], 1, 0),
            "v4.1, and an object that nothing announces"
        );
    }

    /// Invariant (formats): NCCL Inspector: an operation without an announcement is counted and given to no process.
    #[test]
    fn operations_that_nothing_announces_are_of_nobody() {
        let (found, damage) = dumped(&(bare(1) + &head(1, 7, 0) + &bare(2) + &bare(3)));
        assert_eq!((found, damage.objects, damage.missing), (vec![(7, 2)], 2, 0));
        // The second head is cut: what follows may be of another process.
        let second = &head(1, 8, 0)[..60];
        let (found, damage) = dumped(&format!("{}{}{second}\n{}", head(2, 7, 0), bare(1), bare(2)));
        assert_eq!((found, damage.objects, damage.missing), (vec![(7, 1)], 2, 0));
    }

    /// Invariant (formats): NCCL Inspector: an operation that the dump announces and lacks is counted as lost.
    #[test]
    fn announced_operations_that_are_missing_are_counted() {
        let (found, damage) = dumped(&(head(3, 7, 0) + &bare(1) + &head(2, 7, 0) + &bare(2)));
        assert_eq!((found.len(), damage.objects, damage.missing), (2, 0, 3));
        let (found, damage) = dumped(&(head(3, 7, 0) + &bare(1) + "{\"coll_perf\":{\"coll\n" + &bare(3)));
        assert_eq!((found, damage.objects, damage.missing), (vec![(7, 1), (7, 3)], 1, 0));
    }

    #[test]
    fn every_cut_gives_the_objects_before_it() {
        let text = line(1) + &line(2) + &line(3);
        for cut in 0..text.len() {
            let whole = (1..=3).take_while(|n| cut + 1 >= (1..=*n).map(|n| line(n).len()).sum::<usize>()).count();
            let (read, damaged, _) = numbers(&text[..cut]);
            assert_eq!(read.len(), whole, "cut at {cut}");
            assert!(damaged <= 1, "cut at {cut}");
        }
    }
}
