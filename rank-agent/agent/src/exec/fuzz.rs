//! For fuzzing: requests to `exec`, answers to `ctl`, and the messages of a rank that belongs to the job.

use std::sync::atomic::{AtomicUsize, Ordering};

use recorder::Clock;
use trace::ClockSampleRow;
use trace::terminal;

use super::ctl::{as_json, as_text};
use super::endpoint::{Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request, answered, line_of, parse};
use super::steering::Answers;
use super::switch::{NcclDetail, Switch, TimeSchedule};
use crate::Error;
use crate::fabric::agree::{RunRequest, agree_on_run, agree_on_success};
use crate::fabric::ping::PingTree;
use crate::fabric::{Control, Lane};

fn switch() -> Switch {
    let schedule = TimeSchedule::default();
    Switch::new(None, schedule, Switch::first_order(schedule, NcclDetail::Coll))
}

/// For fuzzing: any line to `exec` has an answer that `ctl` reads, and any line to `ctl` is printed without controls.
///
/// # Panics
/// If a check fails.
pub fn check_any_ctl(bytes: &[u8]) {
    let answers = Answers { switch: switch(), run: "/runs/a".into(), run_id: "id".into(), rank: 3, world_size: 8 };
    let (mut rest, mut piece) = (bytes, 0);
    while !rest.is_empty() {
        piece = (piece + 7) % 64 + 1;
        let line = line_of(MAX_REQUEST_BYTES, |buffer| {
            let (now, later) = rest.split_at(rest.len().min(piece).min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = later;
            Ok(now.len())
        });
        let Ok(line) = line else { continue };
        assert!(line.len() <= MAX_REQUEST_BYTES && !line.contains(&b'\n'));
        check_request(&answers, &line);
        if let Ok(answer) = parse::<Answer>(&line) {
            check_answer(answer);
        }
    }
}

fn check_request(answers: &Answers, line: &[u8]) {
    if let Ok(request) = parse::<Request>(line) {
        // A duration may change in its last digit.
        let facts = |of: &Request| match of {
            Request::Start { nccl_detail, duration_s } => Some((nccl_detail.clone(), duration_s.is_some())),
            _ => None,
        };
        let again = serde_json::to_vec(&request).map(|text| parse::<Request>(&text));
        assert!(matches!(&again, Ok(Ok(again)) if facts(again) == facts(&request)), "{request:?} became {again:?}");
    }
    let answer = answered(line, &|request| answers.answer(request));
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    assert!(text.len() <= MAX_ANSWER_BYTES && !text.contains(&b'\n'), "an answer is one line: {answer:?}");
    match parse::<Answer>(&text) {
        Ok(again) => check_answer(again),
        Err(error) => unreachable!("{answer:?} cannot be read: {error}"),
    }
}

fn check_answer(answer: Answer) {
    let Answer::Status(status) = answer else { return };
    let text = as_text(&[status.clone(), status.clone()]);
    assert!(!text.chars().any(|c| c != '\n' && terminal::is_control(c)), "{text:?}");
    assert!(as_json(&[status]).is_ok_and(|text| !text.is_empty()));
}

/// For fuzzing: whatever a rank of the job sends, the others agree with it, compare clocks and follow its switch, or stop
/// with an error.
///
/// # Panics
/// If a check fails.
pub fn check_any_peer(bytes: &[u8]) {
    let Some((head, words)) = bytes.split_first_chunk::<2>() else { return };
    let size = usize::from(head[0] % 8) + 2;
    let peer = Peer { rank: usize::from(head[1]) % size, size, bytes: words, at: AtomicUsize::new(0) };
    if peer.rank > 0 {
        // Rank 0 would create a run.
        let _ = agree_on_run(&peer, &RunRequest::default()).map_err(|error| error.to_string());
    }
    let _ = agree_on_success::<_, Error>(&peer, Ok(())).map_err(|error| error.to_string());
    let switch = switch();
    for _ in 0..3 {
        let Ok(words) = peer.all_gather(Lane::Control, &[switch.word()]) else { break };
        switch.follow(words.iter().copied());
        let word = switch.word();
        switch.follow(words.iter().copied());
        assert_eq!(switch.word(), word, "the same words a second time");
        switch.by_hand(words.len() % 2 == 0, None, None);
    }
    let _ = switch.now();
    let Ok((tree, hosts)) = PingTree::for_fabric(&peer, 1) else { return };
    assert!((1..=size).contains(&hosts) && tree.edges().len() + 1 == size);
    let rows = tree.burst(&peer, Clock::system()).unwrap_or_default();
    let is_exact = |row: &ClockSampleRow| {
        let offset = i128::from(row.remote_ns) - i128::from(row.local_ns);
        i128::from(row.offset_ns) == offset.clamp(i64::MIN.into(), i64::MAX.into()) && row.rtt_ns >= 0
    };
    assert!(rows.iter().all(is_exact), "{rows:?}");
}

/// Ranks whose messages are the given bytes, over and over up to [`MAX_WORDS`].
struct Peer<'a> {
    rank: usize,
    size: usize,
    bytes: &'a [u8],
    at: AtomicUsize,
}

/// Words of one input: enough for a comparison of clocks.
const MAX_WORDS: usize = 300;

impl Peer<'_> {
    fn word(&self) -> Result<u64, Error> {
        let (words, _) = self.bytes.as_chunks::<8>();
        let at = self.at.fetch_add(1, Ordering::Relaxed);
        match words.get(at % words.len().max(1)) {
            Some(word) if at < MAX_WORDS => Ok(u64::from_le_bytes(*word)),
            _ => Err(Error::Abandoned),
        }
    }
}

impl Control for Peer<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn version(&self) -> String {
        "fuzz".into()
    }

    fn barrier(&self) -> Result<(), Error> {
        Ok(())
    }

    fn broadcast(&self, _bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        Ok(self.bytes.to_vec())
    }

    fn all_gather(&self, _lane: Lane, mine: &[u64]) -> Result<Vec<u64>, Error> {
        let mut all: Vec<u64> = (0..self.size * mine.len()).map(|_| self.word()).collect::<Result<_, _>>()?;
        all[self.rank * mine.len()..][..mine.len()].copy_from_slice(mine);
        Ok(all)
    }

    fn send_word(&self, _peer: usize, _word: i64) -> Result<(), Error> {
        Ok(())
    }

    fn receive_word(&self, _peer: usize) -> Result<i64, Error> {
        self.word().map(|word| word as i64)
    }

    fn abandon(&self, _exit_code: u8) {}
}
