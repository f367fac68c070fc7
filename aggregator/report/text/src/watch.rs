//! The state of a run that is being written: as lines, as a screen, and as metrics.

pub mod lines;
pub mod metrics;
pub mod screen;

use model::analysis::VerdictKind;
use model::units::{ns, plural};
use model::watch::{Phase, SlowRank, State};

/// `SLOW RANK 5 (node-a, pid 7419): 30.0 ms longer in `forward`, delays each step by 12.0 ms (95 % interval 10.1 ms to 13.9 ms)`.
fn slow_rank(slow: &SlowRank) -> String {
    let place = slow.identity.words().join(", ");
    let place = if place.is_empty() { String::new() } else { format!(" ({place})") };
    let interval =
        slow.interval_ns.map_or(String::new(), |(low, high)| format!(" (95 % interval {} to {})", ns(low), ns(high)));
    let (rank, location, delay) = (slow.identity.rank, &slow.location, ns(slow.step_delay_ns));
    format!("SLOW RANK {rank}{place}: {location}, delays each step by {delay}{interval}")
}

/// The verdict on the newest steps in a few words: `balanced`, `undecided: rank 3`, …
fn verdict(state: &State) -> String {
    let steps = || plural(state.window.len(), "step");
    match (state.verdict(), &state.not_judged) {
        (_, Some(why)) => format!("not judged: {why}"),
        (None, None) => "not judged yet".into(),
        (Some(verdict), None) => match verdict.kind {
            // Whether a rank became slow is what is watched.
            VerdictKind::Balanced | VerdictKind::Lost => format!("balanced over {}", steps()),
            VerdictKind::Nothing => format!("no verdict: {}", verdict.sentence),
            VerdictKind::Cause | VerdictKind::Undecided | VerdictKind::Jitter | VerdictKind::Hung => {
                let title = verdict.title.to_lowercase();
                format!("{title} over {}", steps())
            }
        },
    }
}

/// The newest step and its length: `step 118, 172 ms`.
fn step(state: &State) -> Option<String> {
    let (step, step_ns) = state.recent.last()?;
    Some(format!("step {step}, {}", ns(*step_ns)))
}

/// The ranks that record, and what is missing.
fn extent(state: &State) -> String {
    let (ranks, world) = (state.ranks.len(), state.world_size.max(0) as usize);
    let read = if ranks == world { plural(ranks, "rank") } else { format!("{ranks} of {}", plural(world, "rank")) };
    let lost = match state.lost_rows {
        0 => "no row lost".to_string(),
        rows => format!("{} lost", plural(rows.max(0) as usize, "row")),
    };
    let unreadable = match state.unreadable {
        0 => String::new(),
        shards => format!(", {} unreadable", plural(shards as usize, "shard")),
    };
    format!("{read}, {lost}{unreadable}")
}

fn phase(state: &State) -> String {
    match &state.phase {
        Phase::Waiting(why) => format!("waiting: {why}"),
        Phase::Recording => "recording".into(),
        Phase::Silent(silent) => format!("no new data for {} s", silent.as_secs()),
        Phase::Ended { clean: true } => state.stopped.as_ref().map_or("ended".into(), |why| format!("ended: {why}")),
        Phase::Ended { clean: false } => "ended without closing its recording".into(),
    }
}
