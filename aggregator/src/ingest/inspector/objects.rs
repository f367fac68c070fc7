//! The objects of a dump: one for each operation of a communicator that ended.
//!
//! ```text
//!  {"header":{"id":"0x7f8c496ae9f661","comm_name":"unknown","rank":2,"n_ranks":8,"nnodes":1},
//!   "metadata":{"dump_timestamp_us":1748030377748202,"hostname":"node-a","pid":1639453,…},
//!   "coll_perf":{"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,…}}
//! ```
//!
//! The plugin writes an object a line; a tool may have written each over several lines. Source: `inspector_json.cc` of NCCL.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;

/// The longest object. One with the times of 64 channels has 20 kB.
const MAX_OBJECT_BYTES: usize = 1 << 20;
/// The most lines of an object that is written over several; the text is read again for each of them.
const MAX_LINES: usize = 2048;

/// An operation that ended.
#[derive(Debug, Deserialize)]
pub(super) struct Object<'a> {
    #[serde(borrow)]
    pub(super) header: Header<'a>,
    #[serde(borrow)]
    pub(super) metadata: Metadata<'a>,
    #[serde(borrow, alias = "p2p_perf")]
    pub(super) coll_perf: Operation<'a>,
}

/// The communicator, and the place of the rank in it.
#[derive(Debug, Deserialize)]
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
#[derive(Debug, Deserialize)]
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
        let found = if text.trim_ascii().is_empty() { Ok(true) } else { parse(&text, &mut take) };
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
                    match parse(&text, &mut take) {
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

/// Gives the object of a text away. Returns whether more are wanted.
fn parse(text: &[u8], take: &mut impl FnMut(Object<'_>) -> bool) -> Result<bool, Fault> {
    match serde_json::from_slice(text) {
        Ok(object) => Ok(take(object)),
        Err(error) if error.is_eof() => Err(Fault::Incomplete),
        Err(_) => Err(Fault::Wrong),
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
