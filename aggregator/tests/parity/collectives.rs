//! Compares with `collectives_ref.csv`: for every NCCL kernel its instance, the last arrival, its wait and whether it
//! came last, on unshifted clocks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use align::matching::match_collectives;
use fixtures::data::real_traces;
use model::{RankData, RankOutline};

use crate::ours::Ours;
use crate::table::lines;
use crate::{children, file_name};

/// One line: name, number from the end, rank, start, end, last arrival, wait and whether it came last; times in µs.
struct Line {
    name: String,
    from_end: i64,
    rank: i32,
    correlation: i64,
    start: f64,
    end: f64,
    last_arrival: f64,
    wait: f64,
    is_last: bool,
}

fn reference(path: &Path) -> Vec<Line> {
    let rows = lines(path);
    let columns = &rows[0];
    let line = |fields: &Vec<String>| {
        let field = |column: &str| fields[columns.iter().position(|c| c == column).unwrap()].as_str();
        Line {
            name: field("name").into(),
            from_end: field("instance_from_end").parse().unwrap(),
            rank: field("rank").parse().unwrap(),
            correlation: field("correlation").parse().unwrap(),
            start: field("start_us").parse().unwrap(),
            end: field("end_us").parse().unwrap(),
            last_arrival: field("last_arrival_us").parse().unwrap(),
            wait: field("wait_us").parse().unwrap(),
            is_last: field("is_last") == "1",
        }
    };
    rows[1..].iter().map(line).collect()
}

/// Index in a rank's collectives, by the correlation id of the kernel.
fn by_correlation(rank: &RankData) -> BTreeMap<i64, usize> {
    let of_event: BTreeMap<i64, i64> =
        rank.events.id.iter().copied().zip(rank.events.correlation.iter().copied()).collect();
    let rows = rank.outline.collectives.iter().enumerate();
    rows.filter_map(|(at, c)| Some((*of_event.get(&c.event_id()?)?, at))).collect()
}

/// Converts times to times since the first start, because some files count from 1970 and some from their own base.
fn epoch(lines: &[Line], ours: &Ours) -> i64 {
    let first = lines.iter().min_by(|a, b| a.start.total_cmp(&b.start)).unwrap();
    let rank = ours.ranks.iter().find(|r| r.outline.info.rank == first.rank).unwrap();
    let collective = &rank.outline.collectives[by_correlation(rank)[&first.correlation]];
    collective.start_ns().unwrap() - (first.start * 1e3).round() as i64
}

#[test]
#[ignore = "reads real traces"]
fn every_collective_equals_that_of_an_independent_match() {
    let data = real_traces();
    let mut text = "\
Differences from `collectives_ref.csv`, whose instances are counted from the end of each rank's kernels of one name. Written by the
test `parity`. Times are compared to the µs.
"
    .to_string();
    for folder in children(&data.join("expected_ref")) {
        let path = folder.join("collectives_ref.csv");
        if !path.is_file() {
            continue;
        }
        let name = file_name(&folder);
        let lines = reference(&path);
        let ours = Ours::new(&data.join("kineto").join(&name));
        write!(text, "\n## {name}: {} kernels\n\n", lines.len()).unwrap();
        compare(&lines, &ours, &mut text);
    }
    fixtures::generated::check_text("aggregator/tests/parity/collectives.md", &text);
}

fn compare(lines: &[Line], ours: &Ours, text: &mut String) {
    let epoch_ns = epoch(lines, ours);
    let us = |ns: i64| (ns - epoch_ns) as f64 / 1e3;
    let rows: Vec<&RankOutline> = ours.ranks.iter().map(|r| &r.outline).collect();
    let (instances, omissions) = match_collectives(&rows);
    for omission in &omissions {
        writeln!(
            text,
            "* our analysis reports: {:?} {}: {}",
            omission.amount.unwrap_or_default(),
            omission.what,
            omission.why
        )
        .unwrap();
    }
    let positions: BTreeMap<i32, BTreeMap<i64, usize>> =
        ours.ranks.iter().map(|r| (r.outline.info.rank, by_correlation(r))).collect();
    let mut equal = 0;
    for line in lines {
        let what = format!("{} −{} rank {}", line.name, line.from_end, line.rank);
        let at = positions[&line.rank].get(&line.correlation).copied();
        let member = |m: &&model::Member| m.rank == line.rank && Some(m.index as usize) == at;
        let found = instances.iter().find_map(|i| Some((i, i.members.iter().find(member)?)));
        let Some((instance, member)) = found else {
            writeln!(text, "* {what}: our row is in no instance").unwrap();
            continue;
        };
        let end_ns = member.end_ns.unwrap();
        assert!((us(member.start_ns) - line.start).abs() <= 1.0 && (us(end_ns) - line.end).abs() <= 1.0, "{what}");
        let last_ns = instance.members.iter().map(|m| m.start_ns).max().unwrap();
        let wait = us(last_ns.min(end_ns)) - us(member.start_ns);
        let is_last = member.start_ns == last_ns;
        let same_last = is_last == line.is_last || (us(last_ns) - line.last_arrival).abs() <= 1.0;
        if (us(last_ns) - line.last_arrival).abs() <= 1.0 && (wait - line.wait).abs() <= 1.0 && same_last {
            equal += 1;
            continue;
        }
        let expected = lines.iter().filter(|l| (&l.name, l.from_end) == (&line.name, line.from_end)).count();
        writeln!(
            text,
            "* {what}: wait {wait:.1} of {} ranks; the reference's {:.1} of {expected} ranks",
            instance.members.len(),
            line.wait
        )
        .unwrap();
    }
    writeln!(text, "{equal} of {} equal", lines.len()).unwrap();
}
