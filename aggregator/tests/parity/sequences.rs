//! Kernel sequences, recomputed from the raw traces in the simplest way: each launch checks every operator of its
//! thread.

use std::collections::{BTreeMap, HashMap};

use fixtures::data::real_traces;

use crate::ours::Ours;
use crate::raw::{Event, Rank};
use crate::{children, file_name, raw_ranks};

/// Calls and time by pattern, for patterns of three or more kernels.
fn plain(rank: &Rank) -> BTreeMap<String, (i64, f64)> {
    let slack = if rank.fractional { 0.0 } else { 1.0 };
    let mut calls: HashMap<i64, &Event> = HashMap::new();
    for event in rank.events.iter().filter(|e| e.is_call() && e.correlation >= 0) {
        let call = calls.entry(event.correlation).or_insert(event);
        if event.ts < call.ts {
            *call = event;
        }
    }
    let mut operators: HashMap<&str, Vec<&Event>> = HashMap::new();
    // Older traces have steps as operators.
    let is_operator =
        |e: &&Event| ["cpu_op", "Operator"].contains(&&*e.category) && !e.name.starts_with("ProfilerStep#");
    for event in rank.events.iter().filter(is_operator) {
        operators.entry(&event.thread).or_default().push(event);
    }
    let mut launched: HashMap<i64, Vec<&Event>> = HashMap::new();
    for work in rank.events.iter().filter(|e| e.is_work()) {
        let Some(call) = calls.get(&work.correlation) else { continue };
        let encloses = |o: &&&Event| o.ts <= call.ts && o.end() + slack >= call.end() && o.end() > call.ts;
        let around = operators.get(call.thread.as_str()).into_iter().flatten().filter(encloses);
        if let Some(outermost) = around.max_by(|a, b| a.dur.total_cmp(&b.dur).then(b.index.cmp(&a.index))) {
            launched.entry(outermost.index).or_default().push(work);
        }
    }
    let names: HashMap<i64, &str> = rank.events.iter().map(|e| (e.index, e.name.as_str())).collect();
    let mut patterns: BTreeMap<String, (i64, f64)> = BTreeMap::new();
    for (operator, mut works) in launched.into_iter().filter(|(_, works)| works.len() >= 3) {
        works.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)).then(a.index.cmp(&b.index)));
        let mut pattern: Vec<&str> = vec![names[&operator]];
        pattern.extend(works.iter().take(32).map(|work| work.name.as_str()));
        let rest = format!("… {} more", works.len().saturating_sub(32));
        if works.len() > 32 {
            pattern.push(&rest);
        }
        let sums = patterns.entry(pattern.join("|")).or_default();
        sums.0 += 1;
        sums.1 += works.iter().map(|work| work.dur).sum::<f64>();
    }
    patterns
}

#[test]
#[ignore = "reads real traces"]
fn sequences_equal_those_of_a_simple_search() {
    let data = real_traces();
    let mut compared = 0;
    for folder in children(&data.join("expected_hta")) {
        let name = file_name(&folder);
        let traces = data.join("kineto").join(&name);
        let ours = Ours::new(&traces);
        for rank in raw_ranks(&traces) {
            let plain = plain(&rank);
            let rows = ours.tables.kernel_sequences.iter().filter(|r| i64::from(r.rank) == rank.rank);
            // Patterns that differ only after the 32nd kernel are one pattern here and several there.
            let mut found: BTreeMap<String, (i64, f64)> = BTreeMap::new();
            for row in rows {
                let sums = found.entry(row.pattern.to_string()).or_default();
                sums.0 += row.calls;
                sums.1 += row.gpu_total_ns as f64 / 1e3;
            }
            for (pattern, (times, gpu_us)) in &found {
                let (expected, expected_us) = plain.get(pattern).copied().unwrap_or_default();
                let close = (gpu_us - expected_us).abs() <= 0.01 * *times as f64;
                let short: String = pattern.chars().take(150).collect();
                assert!(
                    *times == expected && close,
                    "{name} rank {}: {short}: {times} × {gpu_us}, plainly {expected} × {expected_us}",
                    rank.rank
                );
                compared += 1;
            }
            // The aggregator keeps only the most frequent patterns.
            assert!(found.len() == plain.len() || found.len() >= 40, "{name}: {} of {}", found.len(), plain.len());
        }
    }
    assert!(compared > 100, "{compared}");
}
