//! The ranks that hold a job up: as text, and as a picture.

pub mod picture;

use std::fmt::Write as _;
use std::io::Write;

use hang::mismatch::{Kind, Mismatch};
use hang::report::{Evidence, Fault, Hang, Operation, Wait};
use model::error::Error;
use model::units::{bytes, count, plural, ranks_named, wrap};

/// The rows of each part that are printed.
const MAX_ROWS: usize = 20;
/// Indentation of one step in the chain of waits, and the deepest one.
const STEP: usize = 2;
const MAX_DEPTH: usize = 12;
/// A longer list of ranks is shortened to their number.
const MAX_RANKS_CHARS: usize = 60;

/// Prints the answer within a width.
///
/// # Errors
/// [`Error::Output`].
pub fn write_hang(hang: &Hang, width: usize, out: &mut dyn Write) -> Result<(), Error> {
    let mut lines = Lines { out, width };
    lines.write(0, &headline(hang))?;
    lines.list(&alike(&hang.evidence), |(ranks, evidence)| (1, said_of(ranks, evidence)))?;
    if !hang.device_stuck.is_empty() {
        let text = format!(
            "Device stuck: {}. Other ranks ended collectives that these ranks called and did not end.",
            named(&hang.device_stuck)
        );
        lines.write(0, &text)?;
    }
    for ranks in &hang.deadlocks {
        lines.write(0, &format!("Deadlock: {} wait for each other, and for no other rank.", named(ranks)))?;
    }
    if !hang.mismatches.is_empty() {
        lines.write(0, "Ranks disagree:")?;
        lines.list(&hang.mismatches, |mismatch| (1, disagreement(mismatch)))?;
    }
    if !hang.waits.is_empty() {
        lines.write(0, "Who waits for whom:")?;
        let depths = depths(&hang.waits);
        let rows: Vec<(usize, &Wait)> = depths.into_iter().zip(&hang.waits).collect();
        lines.list(&rows, |(depth, wait)| (1 + (*depth).min(MAX_DEPTH), said_of_wait(wait)))?;
    }
    Ok(())
}

struct Lines<'a> {
    out: &'a mut dyn Write,
    width: usize,
}

impl Lines<'_> {
    fn write(&mut self, depth: usize, text: &str) -> Result<(), Error> {
        let indent = " ".repeat(STEP * depth);
        for (at, line) in wrap(text, self.width.saturating_sub(indent.len() + STEP).max(20)).iter().enumerate() {
            let hanging = if at == 0 { "" } else { "  " };
            writeln!(self.out, "{indent}{hanging}{line}")?;
        }
        Ok(())
    }

    fn list<T>(&mut self, rows: &[T], text: impl Fn(&T) -> (usize, String)) -> Result<(), Error> {
        for row in rows.iter().take(MAX_ROWS) {
            let (depth, text) = text(row);
            self.write(depth, &text)?;
        }
        if rows.len() > MAX_ROWS {
            self.write(1, &format!("… {} more in --json", count((rows.len() - MAX_ROWS) as u64)))?;
        }
        Ok(())
    }
}

/// Ranks, at most as many as one reads.
fn named(ranks: &[i32]) -> String {
    let text = ranks_named(ranks);
    if text.chars().count() <= MAX_RANKS_CHARS {
        return text;
    }
    let first: Vec<String> = ranks.iter().take(3).map(i32::to_string).collect();
    format!("{} ({}, …)", plural(ranks.len(), "rank"), first.join(", "))
}

/// The answer in one sentence.
pub(crate) fn headline(hang: &Hang) -> String {
    let read = plural(hang.ranks_read, "rank");
    if let Some(why) = trace::cancelled(&hang.omissions, hang.ranks_read) {
        if hang.culprits.is_empty() {
            return format!("The job was cancelled ({why}), and no rank was behind the others then.");
        }
        let behind = named(&hang.culprits);
        return format!(
            "The job was cancelled ({why}). If it hung before, {behind} held it up; else they were behind the others then."
        );
    }
    if !hang.culprits.is_empty() {
        let verb = if hang.culprits.len() == 1 { "holds" } else { "hold" };
        return capital(&format!("{} {verb} the job up.", named(&hang.culprits)));
    }
    if !hang.deadlocks.is_empty() {
        return "The job is in a deadlock.".into();
    }
    if hang.ranks_unfinished == 0 {
        return format!("Nothing hangs: {read} were read, and every operation that they called has ended.");
    }
    let unfinished = plural(hang.ranks_unfinished, "rank");
    format!(
        "{unfinished} of {} have operations that have not ended, but no rank is behind the others. Look at the disagreements below, or \
         for a link that stopped.",
        count(hang.ranks_read as u64)
    )
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Culprits in the same state with their ranks: a job of thousands of ranks has few states.
fn alike(evidence: &[Evidence]) -> Vec<(Vec<i32>, &Evidence)> {
    let mut groups: Vec<(Vec<i32>, &Evidence)> = Vec::new();
    for one in evidence {
        let is_same = |first: &Evidence| {
            let state = |e: &Evidence| (e.fault, e.waiting_in_all);
            state(first) == state(one) && first.operation == one.operation && first.waiting == one.waiting
        };
        match groups.iter_mut().find(|(_, first)| is_same(first)) {
            Some((ranks, _)) => ranks.push(one.rank),
            None => groups.push((vec![one.rank], one)),
        }
    }
    groups.iter_mut().for_each(|(ranks, _)| ranks.sort_unstable());
    groups
}

/// The state of these ranks.
fn said_of(ranks: &[i32], evidence: &Evidence) -> String {
    let one = ranks.len() == 1;
    let mut text = format!("{}: ", named(ranks));
    let Some(operation) = &evidence.operation else {
        let them = if one { "it" } else { "them" };
        text.push_str(&format!("no operation is recorded in which others wait for {them}"));
        return text;
    };
    let called = name(operation);
    text.push_str(&match (evidence.fault, one) {
        (Fault::Host, true) => format!("its program has not called {called}"),
        (Fault::Host, false) => format!("their programs have not called {called}"),
        (Fault::Order, true) => {
            format!("its program called another operation before {called}, which the others called first")
        }
        (Fault::Order, false) => {
            format!("their programs called another operation before {called}, which the others called first")
        }
        (Fault::Device, true) => format!("its device does not end {called}"),
        (Fault::Device, false) => format!("their devices do not end {called}"),
        (Fault::NotRead, true) => format!("it has no dump or rows, and others wait for it in {called}"),
        (Fault::NotRead, false) => format!("they have no dumps or rows, and others wait for them in {called}"),
    });
    if let Some(size) = size(operation) {
        let _ = write!(text, ", {size}");
    }
    if evidence.fault != Fault::Device && !evidence.waiting.is_empty() {
        let verb = if evidence.waiting.len() == 1 { "waits" } else { "wait" };
        let _ = write!(text, ". {} {verb} in it", capital(&named(&evidence.waiting)));
    }
    if let Some(since) = operation.since_utc_ns {
        let _ = write!(text, " since {}", utc(since));
    }
    if let Some(line) = &operation.source_line {
        let _ = write!(text, ", called at {line}");
    }
    text.push('.');
    if let Some(all) =
        evidence.waiting_in_all.filter(|all| *all > evidence.waiting.len() || evidence.fault == Fault::Device)
    {
        let them = if one { "it" } else { "each of them" };
        let _ = write!(text, " In all, {} wait for {them} or for one that does.", plural(all, "rank"));
    }
    text
}

/// Operation, number and communicator.
fn name(operation: &Operation) -> String {
    let op = if operation.op.is_empty() { "operation" } else { &operation.op };
    let number = operation.seq.map_or(String::new(), |seq| format!(" {seq}"));
    let peer = match (&*operation.op, operation.peer) {
        ("recv", Some(peer)) => format!(" from rank {peer}"),
        (_, Some(peer)) => format!(" to rank {peer}"),
        (_, None) => String::new(),
    };
    let description = match operation.description.is_empty() {
        true => String::new(),
        false => format!(" ({})", operation.description),
    };
    format!("{op}{number}{peer} of communicator {:?}{description}", operation.communicator)
}

fn size(operation: &Operation) -> Option<String> {
    let elements = operation.elements.map(|elements| count(u64::try_from(elements).unwrap_or(0)));
    let dtype = operation.dtype.as_deref().unwrap_or("elements");
    match (elements, operation.bytes) {
        (Some(elements), Some(size)) => Some(format!("{elements} {dtype} ({})", bytes(size))),
        (Some(elements), None) => Some(format!("{elements} {dtype}")),
        (None, size) => size.map(bytes),
    }
}

fn said_of_wait(wait: &Wait) -> String {
    let what = match wait.why {
        "not_called" => "",
        "not_read" => ", which is unknown",
        "device_stuck" => ", whose device is stuck",
        "not_known" => ", unless that side was posted, which the rings have lost,",
        _ => ", which is busy with an earlier operation",
    };
    let verb = if wait.waiting.len() == 1 { "waits" } else { "wait" };
    let (waiting, late) = (named(&wait.waiting), named(&wait.late));
    format!("{waiting} {verb} for {late}{what} in {}", name(&wait.operation))
}

/// How many waits stand between each wait and a culprit. A wait follows the one that it stands behind.
fn depths(waits: &[Wait]) -> Vec<usize> {
    let mut depths: Vec<usize> = Vec::with_capacity(waits.len());
    for wait in waits {
        depths.push(wait.behind.and_then(|behind| depths.get(behind)).map_or(0, |depth| depth + 1));
    }
    depths
}

fn disagreement(mismatch: &Mismatch) -> String {
    let operation = mismatch.op.as_deref().unwrap_or("operation");
    let number = mismatch.seq.map_or(String::new(), |seq| format!(" {seq}"));
    let description =
        if mismatch.description.is_empty() { String::new() } else { format!(" ({})", mismatch.description) };
    let what = match mismatch.kind {
        Kind::Operation => "what they called as",
        Kind::Order => "the order of their calls at",
        Kind::Type => "the type of",
        Kind::Size => "the elements of",
    };
    let sides = mismatch.sides.iter().map(|side| format!("{}: {}", named(&side.ranks), side.called));
    let sides = sides.collect::<Vec<_>>().join("; ");
    format!("{what} {operation}{number} of communicator {:?}{description}: {sides}", mismatch.communicator)
}

/// A time of day, to milliseconds.
fn utc(ns: i64) -> String {
    chrono::DateTime::from_timestamp_nanos(ns).to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks 0, 1 and 3 have not called what rank 2 waits in; rank 4 has no dump.
    #[test]
    fn ranks_in_one_state_are_one_sentence() {
        let operation = Operation {
            communicator: "0".into(),
            description: "".into(),
            op: "allreduce".into(),
            seq: Some(641),
            peer: None,
            bytes: None,
            elements: None,
            dtype: None,
            since_utc_ns: None,
            source_line: None,
        };
        let evidence = |rank, fault| Evidence {
            rank,
            fault,
            operation: Some(operation.clone()),
            waiting: vec![2],
            waiting_in_all: Some(1),
        };
        let all =
            [evidence(3, Fault::Host), evidence(0, Fault::Host), evidence(4, Fault::NotRead), evidence(1, Fault::Host)];
        let said: Vec<String> = alike(&all).iter().map(|(ranks, one)| said_of(ranks, one)).collect();
        assert_eq!(
            said,
            [
                "ranks 0–1, 3: their programs have not called allreduce 641 of communicator \"0\". Rank 2 waits in it.",
                "rank 4: it has no dump or rows, and others wait for it in allreduce 641 of communicator \"0\". Rank 2 waits in it.",
            ]
        );
    }
}
