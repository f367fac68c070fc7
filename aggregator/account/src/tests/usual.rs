//! Jobs most of whose ranks are slow.

use crate::tests::build::{Job, Work, repeat, verdicts};
use crate::tests::drawn::{exact, work};

/// Most ranks are slow, and one of them is slower still. The three fast ranks show how long the work takes.
#[test]
fn most_ranks_may_be_slow() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let most: Vec<Vec<Work>> = [1000, 1300, 1302, 1001, 1500, 1301, 999, 1300].map(rank).to_vec();
    let result = Job { steps: repeat(5, &most), ..Job::default() }.analyze(&exact());
    let expected = ["victim", "cause", "cause", "victim", "cause", "cause", "victim", "cause"];
    assert_eq!(verdicts(&result), expected);
    assert_eq!(result.usual, [0, 3, 6]);
    let (slower, slow) = (&result.stragglers[4], &result.stragglers[1]);
    assert_eq!((slower.own_excess_ns, slower.step_delay_ns, slower.evidence_excess_ns), (500, 198, Some(500)));
    assert_eq!((slow.own_excess_ns, slow.step_delay_ns, slow.evidence_range.as_deref()), (300, 0, Some("forward")));
    assert_eq!(result.together.map(|all| all.ns), Some(499), "the fast ranks take up to 1001 ns");

    let few: Vec<Vec<Work>> = [1000, 1300, 1302, 1300, 1301].map(rank).to_vec();
    let result = Job { steps: repeat(5, &few), ..Job::default() }.analyze(&exact());
    assert_eq!(result.usual, [] as [i32; 0], "one fast rank makes no others slow");
    assert_eq!(verdicts(&result), ["ok"; 5]);
}
