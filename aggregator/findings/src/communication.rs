//! How communication was recognised, and which kernels may communicate without being counted.

use std::collections::BTreeMap;

use trace::Severity;
use trace::name_rules::function_of;

use crate::finding::{Found, finding, share};
use crate::rank_facts::Suspects;
use crate::registry::Context;
use measure::communication::{CommunicationEvidence, SUSPECT_OVERLAP_PCT, SUSPECT_TIME_PCT};
use model::claim::{Claim, Quantity, Relation, Value};
use model::units::{ns, plural, ranks_named};

kind! {
    /// Kernels may communicate, and are counted as compute.
    POSSIBLE_COMMUNICATION: "possible-communication", by possible
}

/// Names in one sentence. The others are counted.
const NAMED: usize = 3;

/// A sentence about the communication that only the names of kernels tell; `None` if there is none.
pub fn by_name_alone<'a>(ranks: impl Iterator<Item = &'a CommunicationEvidence>) -> Option<String> {
    let (mut total_ns, mut by_function) = (0_i64, BTreeMap::<String, i64>::new());
    for rank in ranks {
        total_ns = total_ns.saturating_add(rank.total_ns);
        for (name, ns) in &rank.by_name_ns {
            let sum = by_function.entry(function_of(name)).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    let by_name_ns = by_function.values().copied().fold(0, i64::saturating_add);
    (!by_function.is_empty()).then(|| {
        format!(
            "communication by kernel name alone: {}, {:.0} % of communication time: {}",
            plural(by_function.len(), "kernel"),
            100.0 * by_name_ns as f64 / total_ns.max(1) as f64,
            longest(by_function)
        )
    })
}

fn possible(context: &Context<'_>) -> Option<Found> {
    let Suspects { by_name, on_ranks } = &context.ranks.suspects;
    let (name, most) = by_name.iter().max_by_key(|(_, suspect)| suspect.total_ns)?;
    let evidence = format!(
        "{}: {}, {:.0} % of its devices' time, {:.0} % of it while other streams compute, on streams without much known \
         computation; thresholds {SUSPECT_TIME_PCT} % and {SUSPECT_OVERLAP_PCT} % (this program's)",
        function_of(name),
        ns(most.total_ns),
        share(&(most.total_ns, most.device_ns)),
        share(&(most.overlap_ns, most.total_ns))
    );
    let by_function = by_name.iter().map(|(name, suspect)| (function_of(name), suspect.total_ns));
    let functions: BTreeMap<String, i64> = by_function.fold(BTreeMap::new(), |mut sums, (function, ns)| {
        let sum: &mut i64 = sums.entry(function).or_default();
        *sum = sum.saturating_add(ns);
        sums
    });
    let these = if functions.len() == 1 { "this kernel" } else { "these kernels" };
    let claim = Claim::new(Quantity::Communication, Relation::Unknown, "kernel_stats").of_ranks(on_ranks).named(name);
    Some(finding(
        claim.value(Value::Ns(most.total_ns)),
        Severity::Info,
        format!(
            "{these} may communicate, and {} counted as compute: {} on {}",
            be(functions.len()),
            longest(functions),
            ranks_named(on_ranks)
        ),
        evidence,
        "if it communicates, --comm REGEX counts the kernels whose name matches as communication",
    ))
}

fn be(kernels: usize) -> &'static str {
    if kernels == 1 { "is" } else { "are" }
}

/// The names with the most time.
fn longest(by_function: BTreeMap<String, i64>) -> String {
    let mut sorted: Vec<(String, i64)> = by_function.into_iter().collect();
    sorted.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let rest = sorted.len().saturating_sub(NAMED);
    let names: Vec<String> = sorted.into_iter().take(NAMED).map(|(function, _)| function).collect();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank_facts::OfRanks;
    use measure::communication::Suspect;
    use model::analysis::Analysis;
    use model::options::Options;

    fn found<'a>(ranks: impl Iterator<Item = (i32, &'a CommunicationEvidence)>) -> Option<trace::FindingRow> {
        let ranks = OfRanks { suspects: Suspects::of(ranks), ..OfRanks::default() };
        possible(&Context::new(&Analysis::default(), &Options::default(), &ranks)).map(|found| found.row)
    }

    fn rank(total_ns: i64, by_name: &[(&str, i64)], suspects: &[(&str, i64)]) -> CommunicationEvidence {
        let suspect = |ns: i64| Suspect { total_ns: ns, overlap_ns: ns / 2, device_ns: 1_000 };
        CommunicationEvidence {
            total_ns,
            by_name_ns: by_name.iter().map(|(name, ns)| ((*name).into(), *ns)).collect(),
            suspects: suspects.iter().map(|(name, ns)| ((*name).into(), suspect(*ns))).collect(),
        }
    }

    #[test]
    fn names_alone_are_said_once_for_all_ranks() {
        assert_eq!(by_name_alone([rank(100, &[], &[])].iter()), None);
        let names = [("void ep::combine<1>(int)", 30), ("void ep::combine<2>(int)", 10)];
        let more = [("b", 5), ("c", 4), ("d", 3)];
        assert_eq!(
            by_name_alone([rank(100, &names, &[]), rank(100, &more, &[])].iter()).unwrap(),
            "communication by kernel name alone: 4 kernels, 26 % of communication time: ep::combine, b, c and 1 more"
        );
    }

    #[test]
    fn suspects_are_offered_with_their_evidence() {
        assert_eq!(found([(0, &rank(100, &[("a", 1)], &[]))].into_iter()), None);
        let ranks = [
            rank(0, &[], &[("void my::exchange<2>()", 200)]),
            rank(0, &[], &[("void my::exchange<2>()", 400), ("b", 10)]),
        ];
        let both = found((0..).zip(&ranks)).unwrap();
        assert_eq!(
            &*both.title,
            "these kernels may communicate, and are counted as compute: my::exchange, b on ranks 0–1"
        );
        assert!(
            both.evidence.starts_with("my::exchange: 600 ns, 30 % of its devices' time, 50 % of it"),
            "{}",
            both.evidence
        );
        let one = found((0..).zip(&ranks[..1])).unwrap();
        assert_eq!(&*one.title, "this kernel may communicate, and is counted as compute: my::exchange on rank 0");
        assert!(one.suggestion.contains("--comm REGEX"));
    }
}
