//! Drawn jobs that hang, as dumps of their ranks in both forms.

use kineto::RankLists;
use trace::random::SplitMix64;

use super::*;
use crate::job::Job;
use crate::report::{Fault, Hang};

/// A value of a dump, which both forms can hold.
enum Value {
    Number(i64),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    fn json(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::List(items) => format!("[{}]", items.iter().map(Self::json).collect::<Vec<_>>().join(",")),
            Self::Map(members) => {
                let members = members.iter().map(|(key, value)| format!("{key:?}: {}", value.json()));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }
        }
    }

    fn pickle(&self, out: &mut Vec<u8>) {
        let text = |text: &str, out: &mut Vec<u8>| {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        };
        match self {
            Self::Number(number) => {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
            Self::Flag(flag) => out.push(if *flag { 0x88 } else { 0x89 }),
            Self::Text(own) => text(own, out),
            Self::List(items) => {
                out.extend(b"](");
                items.iter().for_each(|item| item.pickle(out));
                out.push(b'e');
            }
            Self::Map(members) => {
                out.extend(b"}(");
                for (key, value) in members {
                    text(key, out);
                    value.pickle(out);
                }
                out.push(b'u');
            }
        }
    }

    fn bytes(&self, is_pickle: bool) -> Vec<u8> {
        if !is_pickle {
            return self.json().into_bytes();
        }
        let mut bytes = b"\x80\x02".to_vec();
        self.pickle(&mut bytes);
        bytes.push(b'.');
        bytes
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn map<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// An operation that a rank called.
#[derive(Clone, Debug)]
struct Call {
    /// The number of its group, which is also that of the rank.
    group: usize,
    name: String,
    seq: i64,
    p2p_seq: i64,
    /// Whether its own end is recorded.
    is_ended: bool,
}

fn collective(group: usize, seq: i64, is_ended: bool) -> Call {
    Call { group, name: "nccl:all_reduce".into(), seq, p2p_seq: 0, is_ended }
}

/// The dump of a rank.
#[derive(Clone, Debug, Default)]
struct Drawn {
    rank: i32,
    calls: Vec<Call>,
    /// Numbers of the last operation that was enqueued and of the last that ended, by group.
    status: Vec<(usize, i64, i64)>,
    /// Operations that its ring holds.
    ring: usize,
}

/// The names of groups by their numbers, and their ranks.
type Groups<'a> = &'a [(&'a str, Vec<i32>)];

impl Drawn {
    fn value(&self, groups: Groups<'_>) -> Value {
        let own = groups.iter().filter(|(_, ranks)| ranks.contains(&self.rank));
        let group = |(name, ranks): &(&str, Vec<i32>)| {
            (name.to_string(), map([("desc", text("")), ("ranks", Value::Text(format!("{ranks:?}")))]))
        };
        let position = |(group, enqueued, completed): &(usize, i64, i64)| {
            let numbers = [("last_enqueued_collective", *enqueued), ("last_completed_collective", *completed)];
            (group.to_string(), map(numbers.map(|(key, number)| (key, Value::Number(number)))))
        };
        let sizes = || Value::List(vec![Value::List(vec![Value::Number(8)])]);
        let entry = |(at, call): (usize, &Call)| {
            map([
                ("record_id", Value::Number(at as i64)),
                ("pg_id", Value::Number(call.group as i64)),
                ("process_group", Value::List(vec![text(groups[call.group].0), text("")])),
                ("profiling_name", text(&call.name)),
                ("collective_seq_id", Value::Number(call.seq)),
                ("p2p_seq_id", Value::Number(call.p2p_seq)),
                ("is_p2p", Value::Flag(!call.name.contains("all_reduce"))),
                ("retired", Value::Flag(call.is_ended)),
                ("state", text("scheduled")),
                ("time_created_ns", Value::Number(at as i64)),
                ("input_sizes", sizes()),
                ("output_sizes", sizes()),
            ])
        };
        let lost = self.calls.len().saturating_sub(self.ring);
        map([
            ("version", text("2.10")),
            ("pg_config", Value::Map(own.map(group).collect())),
            ("pg_status", Value::Map(self.status.iter().map(position).collect())),
            ("entries", Value::List(self.calls.iter().enumerate().skip(lost).map(entry).collect())),
        ])
    }
}

/// The answer from dumps as JSON, which must be that from pickles.
fn hang_of(dumps: &[Drawn], groups: Groups<'_>) -> Hang {
    let answer = |is_pickle: bool| {
        let lists = RankLists::default();
        let read = |drawn: &Drawn| {
            let bytes = drawn.value(groups).bytes(is_pickle);
            Dumped::of(drawn.rank, FlightDump::read(&bytes, &lists, &mut kineto::Room::unlimited()).unwrap())
        };
        Hang::of(Job::of(states_of(dumps.iter().map(read).collect()).0, Vec::new(), None))
    };
    let (json, pickle) = (answer(false), answer(true));
    assert_eq!(format!("{json:?}"), format!("{pickle:?}"));
    json
}

/// Jobs of each kind that are drawn.
const JOBS: u64 = 300;

/// Draws a number of a range.
fn draw(dice: &mut SplitMix64, range: std::ops::Range<usize>) -> usize {
    range.start + (dice.next_u64() >> 1) as usize % range.len()
}

fn flag(dice: &mut SplitMix64) -> bool {
    draw(dice, 0..2) == 1
}

/// Sends of one batch, from the first to the second rank.
type Edges = Vec<(usize, usize)>;

/// A job whose ranks exchange parts in batches. In the last batch, nobody posts the other side of one send.
#[derive(Clone, Debug)]
struct Exchange {
    ranks: usize,
    batches: Vec<Edges>,
    /// The send of the last batch that lacks a side, and whether that is the send.
    lacking: (usize, bool),
    /// Whether a collective follows each batch but the last.
    has_collectives: bool,
    /// Whether the entry that closes a batch is recorded.
    is_closed: bool,
    ring: usize,
}

impl Exchange {
    fn draw(dice: &mut SplitMix64) -> Self {
        let ranks = draw(dice, 2..7);
        let batches: Vec<Edges> = (0..draw(dice, 1..5))
            .map(|_| {
                let edge = |dice: &mut SplitMix64| {
                    let from = draw(dice, 0..ranks);
                    (from, (from + draw(dice, 1..ranks)) % ranks)
                };
                (0..draw(dice, 2..8)).map(|_| edge(dice)).collect()
            })
            .collect();
        let lacking = (draw(dice, 0..batches[batches.len() - 1].len()), flag(dice));
        let (has_collectives, is_closed) = (flag(dice), flag(dice));
        Self { ranks, batches, lacking, has_collectives, is_closed, ring: draw(dice, 1..60) }
    }

    /// The rank that did not post its side, and the one that waits for it.
    fn lacks(&self) -> (usize, usize) {
        let (at, is_send) = self.lacking;
        let (from, to) = self.batches[self.batches.len() - 1][at];
        if is_send { (from, to) } else { (to, from) }
    }

    fn dump(&self, rank: usize, ring: usize) -> Drawn {
        let (_, waiting) = self.lacks();
        let (mut calls, mut seq) = (Vec::new(), 0);
        for (number, edges) in self.batches.iter().enumerate() {
            let is_last = number + 1 == self.batches.len();
            let call = |name: String, is_ended| Call { group: 0, name, seq, p2p_seq: number as i64 + 1, is_ended };
            let before = calls.len();
            for (at, (from, to)) in edges.iter().enumerate() {
                let is_lacking = |is_send| is_last && self.lacking == (at, is_send);
                if *from == rank && !is_lacking(true) {
                    calls.push(call(format!("nccl:send {from}->{to}"), false));
                }
                if *to == rank && !is_lacking(false) {
                    calls.push(call(format!("nccl:recv {to}<-{from}"), false));
                }
            }
            let is_ended = !is_last || rank != waiting;
            if calls.len() > before && (self.is_closed || is_ended) {
                calls.push(call("nccl:coalesced".into(), is_ended));
            }
            if self.has_collectives && !is_last {
                seq += 1;
                calls.push(collective(0, seq, true));
            }
        }
        Drawn { rank: rank as i32, calls, status: Vec::new(), ring }
    }

    /// The answer if the rings hold so many operations, and whether they show what both sides posted.
    fn hang(&self, ring: usize) -> (Hang, bool) {
        let dumps: Vec<Drawn> = (0..self.ranks).map(|rank| self.dump(rank, ring)).collect();
        let is_whole = dumps.iter().all(|dump| dump.calls.len() <= ring);
        let is_seen = |dump: &Drawn| {
            let last = dump.calls.iter().rposition(|call| call.name.contains("all_reduce")).filter(|_| !is_whole);
            last.map_or(is_whole, |last| dump.calls.len() - last <= ring)
        };
        let is_seen = dumps.iter().all(is_seen);
        (hang_of(&dumps, &[("0", (0..self.ranks as i32).collect())]), is_seen)
    }
}

/// Most rings have lost all operations of one group, because the whole job made others since.
#[derive(Clone, Debug)]
struct Wrapped {
    /// For each rank, whether its ring still holds the operations of the group.
    holds: Vec<bool>,
    late: usize,
    /// Number of the group's last collective, which one rank did not call.
    seq: i64,
    /// Whether the group that is in flight is the second or the third; the other one was never used.
    group: usize,
    later: i64,
}

impl Wrapped {
    fn draw(dice: &mut SplitMix64) -> Self {
        let holds: Vec<bool> = (0..draw(dice, 2..7)).map(|_| flag(dice)).collect();
        let (late, seq) = (draw(dice, 0..holds.len()), draw(dice, 1..9) as i64);
        Self { holds, late, seq, group: draw(dice, 1..3), later: draw(dice, 3..20) as i64 }
    }

    fn hang(&self) -> Hang {
        let all: Vec<i32> = (0..self.holds.len() as i32).collect();
        let groups = [("0", all.clone()), ("7", all.clone()), ("12", all)];
        let dump = |(rank, holds): (usize, &bool)| {
            let called = self.seq - i64::from(rank == self.late);
            let own = (1..=called).map(|seq| collective(self.group, seq, seq < self.seq));
            let later = (1..=self.later).map(|seq| collective(0, seq, true));
            let calls: Vec<Call> = own.chain(later).collect();
            let ring = if *holds { calls.len() } else { self.later as usize };
            let status = vec![(0, self.later, self.later), (self.group, called, self.seq - 1)];
            Drawn { rank: rank as i32, calls, status, ring }
        };
        hang_of(&self.holds.iter().enumerate().map(dump).collect::<Vec<_>>(), &groups)
    }
}

/// Some ranks call group 2 before group 1. Other ranks belong to group 2 alone, or to neither group.
fn crossed(ranks: usize, odd: &[usize], of_second_only: usize, is_queued: bool) -> Hang {
    let all: Vec<i32> = (0..(ranks + of_second_only) as i32).collect();
    let groups = [("0", all.clone()), ("1", all[..ranks].to_vec()), ("2", all.clone())];
    let dump = |rank: &i32| {
        let of = *rank as usize;
        let order = match (of < ranks, odd.contains(&of)) {
            (true, true) => vec![2, 1],
            (true, false) => vec![1, 2],
            (false, _) => vec![2],
        };
        // A host that waits for each operation does not call the second one.
        let called = if is_queued { order.len() } else { 1 };
        let calls = order[..called].iter().map(|group| collective(*group, 1, false)).collect();
        let status = order[..called].iter().map(|group| (*group, 1, 0)).collect();
        Drawn { rank: *rank, calls, status, ring: 9 }
    };
    hang_of(&all.iter().map(dump).collect::<Vec<_>>(), &groups)
}

/// Invariant (hang): Of a batch that lacks a send or a receive, only the rank that did not post it is named.
#[test]
fn a_rank_that_posted_its_sides_of_a_batch_is_not_blamed() {
    for seed in 0..JOBS {
        let job = Exchange::draw(&mut SplitMix64(seed));
        let (lacking, waiting) = job.lacks();
        let (found, is_seen) = job.hang(usize::MAX);
        assert!(is_seen);
        assert_eq!(found.culprits, [lacking as i32], "{job:?}");
        assert_eq!(found.waits_for.keys().copied().collect::<Vec<_>>(), [waiting as i32], "{job:?}");
        // A ring that lost operations may tell less, and nothing wrong.
        let (found, is_seen) = job.hang(job.ring);
        assert!(!is_seen || !found.culprits.is_empty(), "{job:?}");
        assert!(found.culprits.iter().all(|rank| *rank == lacking as i32), "{job:?}: {found:?}");
    }
}

/// Invariant (hang): An operation that the library counts as in flight forbids that nothing hangs, also where rings have lost it, and
/// the late rank is named if any dump names the group.
#[test]
fn an_operation_that_the_ring_lost_still_hangs() {
    for seed in 0..JOBS {
        let job = Wrapped::draw(&mut SplitMix64(seed));
        let found = job.hang();
        // The first call of the group is the one that the late rank lacks.
        let is_named = job.holds.iter().enumerate().any(|(rank, holds)| *holds && (rank != job.late || job.seq > 1));
        let culprits: &[i32] = if is_named { &[job.late as i32] } else { &[] };
        assert_eq!(found.culprits, culprits, "{job:?}");
        assert_eq!(found.ranks_unfinished, job.holds.len() - 1, "{job:?}");
    }
}

/// Invariant (hang): If ranks call two communicators in different orders, the minority is named. On a tie, nobody is named.
#[test]
fn the_ranks_that_call_in_another_order_than_most_are_named() {
    for seed in 0..JOBS {
        let dice = &mut SplitMix64(seed);
        let ranks = draw(dice, 2..9);
        let odd: Vec<usize> = (0..ranks).filter(|_| draw(dice, 0..3) == 0).collect();
        let (others, is_queued) = (draw(dice, 0..12), flag(dice));
        if odd.is_empty() || odd.len() == ranks {
            continue;
        }
        let found = crossed(ranks, &odd, others, is_queued);
        let fewer: Vec<usize> = match (odd.len() * 2).cmp(&ranks) {
            std::cmp::Ordering::Less => odd.clone(),
            std::cmp::Ordering::Equal => Vec::new(),
            std::cmp::Ordering::Greater => (0..ranks).filter(|rank| !odd.contains(rank)).collect(),
        };
        let fewer: Vec<i32> = fewer.into_iter().map(|rank| rank as i32).collect();
        assert_eq!(found.culprits, fewer, "{odd:?} of {ranks}, {others} others, {is_queued}");
        assert_eq!(found.deadlocks.len(), 1);
        assert!(found.evidence.iter().all(|evidence| evidence.fault == Fault::Order));
    }
}
