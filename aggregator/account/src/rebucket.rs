//! The run with gradient buckets of another size.
//!
//! ```text
//!   recorded   work   ####w3 w2 | w1 w0 |            buckets of two gradients
//!              comm             [= 0 ==][= 1 ==]
//!   smaller    work   ####w3 | w2 | w1 | w0 |        gradients are ready in proportion to their bytes
//!              comm          [0 ][1 ][2 ][3 ]
//! ```
//!
//! A bucket closes when its gradients reach the limit; a gradient is never split, and the first bucket closes at 1 MiB, as in
//! DistributedDataParallel. A recorded bucket is ready when its arrival waits for nothing but the buckets before it. Between two recorded
//! buckets, gradients become ready in proportion to their bytes. A transfer takes as long as recorded transfers of that size, and of sizes
//! between recorded ones on the line between them. Where no transfer was recorded whose size is within a quarter, the length may be off by
//! 30 % for each factor of 4 between the sizes; a larger one than all recorded ones may be longer by twice that.
//!
//! Work that waited for a recorded bucket now waits for the bucket that holds the last gradient of the recorded one.

use std::collections::{BTreeMap, BTreeSet};

use measure::graph::{NodeKind, Path};
use model::stats::lower_median;
use topology::join::Join;

use crate::graph::{Changes, NONE, Node, Span, SpanKind, ready_ns};
use crate::scaled::Scaled;

/// DDP's `kDefaultFirstBucketBytes`.
const FIRST_BUCKET_BYTES: i64 = 1 << 20;

/// The error of the length of a transfer of another size than recorded ones, for each factor of 4 between them, at least once.
const UNKNOWN_SIZE: f64 = 0.3;
/// Sizes that are no other sizes, in powers of 4: a quarter more.
const NEAR_SIZE: f64 = 0.161;

/// Which end of what the recording leaves open a replay assumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The shortest steps.
    Short,
    /// The likely ones.
    #[default]
    Expected,
    /// The longest ones.
    Long,
}

/// The sizes of the gradients of a bucket in the order in which they fill it, by its number; in bytes.
pub type Gradients = BTreeMap<i32, Vec<i64>>;

/// The gradient buckets of a step and communicator.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    comm_id: i64,
    /// Number, position of the instance, and bytes; by number.
    recorded: Vec<(i32, u32, i64)>,
}

impl Buckets {
    /// Those of each step and communicator that has several ones: they show when gradients are ready.
    pub(crate) fn of(join: &Join) -> Vec<Self> {
        let mut groups: BTreeMap<(i32, i64), BTreeMap<i32, (u32, i64)>> = BTreeMap::new();
        for (at, instance) in (0..).zip(&join.instances).filter(|(_, instance)| instance.symmetric) {
            let bytes = instance.bytes().filter(|bytes| *bytes > 0);
            if let (Some(step), Some(bucket), Some(bytes)) = (instance.step, instance.bucket, bytes) {
                groups.entry((step, instance.comm_id)).or_default().insert(bucket, (at, bytes));
            }
        }
        let several = groups.into_iter().filter(|(_, group)| group.len() > 1);
        let of_group = |((_, comm_id), group): (_, BTreeMap<i32, (u32, i64)>)| {
            let recorded = group.into_iter().map(|(number, (instance, bytes))| (number, instance, bytes)).collect();
            Self { comm_id, recorded }
        };
        several.map(of_group).collect()
    }

    /// Those that replace them if buckets close at a size.
    fn replacing(&self, limit_bytes: i64, gradients: &Gradients) -> Vec<Replacing> {
        let pieces = self.recorded.iter().enumerate().flat_map(|(at, (number, _, bytes))| {
            let sum = |sizes: &[i64]| sizes.iter().map(|size| i128::from(*size)).sum::<i128>();
            let known = gradients.get(number).filter(|sizes| sum(sizes) == i128::from(*bytes));
            let sizes = known.cloned().unwrap_or_else(|| even(*bytes, limit_bytes));
            let ends = sizes.clone().into_iter().scan(0_i64, |sum, size| {
                *sum = sum.saturating_add(size);
                Some(*sum)
            });
            let shares: Vec<f64> = ends.map(|end| end as f64 / *bytes as f64).collect();
            sizes.into_iter().zip(shares).map(move |(size, share)| (at, size, share)).collect::<Vec<_>>()
        });
        let (mut replacing, mut open, mut limit) = (Vec::new(), 0_i64, limit_bytes.min(FIRST_BUCKET_BYTES));
        let mut end = None;
        for (last, size, share) in pieces {
            open = open.saturating_add(size);
            end = Some((last, share));
            if open >= limit {
                replacing.push(Replacing { bytes: std::mem::take(&mut open), last, share });
                limit = limit_bytes;
            }
        }
        replacing.extend(end.filter(|_| open > 0).map(|(last, share)| Replacing { bytes: open, last, share }));
        replacing
    }
}

/// A bucket that replaces recorded ones.
struct Replacing {
    bytes: i64,
    /// The recorded bucket that holds its last gradient, and the share of that bucket's bytes up to its end.
    last: usize,
    share: f64,
}

/// The nodes of a recorded bucket: its transfer, and arrival and end of each rank.
#[derive(Default)]
struct OfBucket {
    transfers: Vec<u32>,
    ranks: BTreeMap<u32, [u32; 2]>,
}

/// When a rank has the gradients of the recorded buckets.
struct Ready {
    /// For each bucket, the node at which the rank has them, and when that was in the recording.
    nodes: Vec<(u32, i64)>,
    /// From the end of a bucket to the begin of the next one, which waits for it.
    queued_ns: i64,
}

impl Scaled {
    /// The run with buckets that close at `limit_bytes`. `None` if the recording does not show when gradients are ready, as where no step has
    /// two buckets on all of their ranks, or if ranks then wait for each other for ever.
    pub(crate) fn rebucketed(
        &self,
        buckets: &[Buckets],
        limit_bytes: i64,
        (gradients, bound): (&Gradients, Bound),
        ranks: usize,
    ) -> Option<Self> {
        let of_buckets = self.of_buckets(buckets);
        let nodes_of = |group: &Buckets| -> Option<Vec<&OfBucket>> {
            let nodes = group.recorded.iter().map(|(_, instance, _)| of_buckets.get(instance));
            let nodes: Vec<&OfBucket> = nodes.collect::<Option<_>>()?;
            let same_ranks = nodes.windows(2).all(|pair| pair[0].ranks.keys().eq(pair[1].ranks.keys()));
            // A rank that left a bucket before others arrived did not wait for it.
            (same_ranks && nodes.iter().all(|of| of.transfers.len() == 1)).then_some(nodes)
        };
        let groups: Vec<(&Buckets, Vec<&OfBucket>)> =
            buckets.iter().filter_map(|group| Some((group, nodes_of(group)?))).collect();
        if groups.is_empty() {
            return None;
        }
        let transfers = Transfers { bound, ..self.transfers(&groups) };
        let mut ends_ns = Vec::new();
        self.graph.replay(&self.graph.recorded_ns(), &mut ends_ns);
        let mut change = Change { run: self, ends_ns: &ends_ns, changes: Changes::default(), now: BTreeMap::new() };
        let mut comm_of = self.comm_of.clone();
        for (group, nodes) in &groups {
            let replacing = group.replacing(limit_bytes, gradients);
            change.replace(
                nodes,
                &replacing,
                (comm_of.len() as u32, &|bytes| transfers.ns(group.comm_id, bytes)),
                group,
            )?;
            comm_of.extend(replacing.iter().map(|_| group.comm_id));
        }
        let changed = self.changed(&change.redirected()?, ranks)?;
        Some(Self { comm_of, ..changed })
    }

    fn of_buckets(&self, buckets: &[Buckets]) -> BTreeMap<u32, OfBucket> {
        let recorded = buckets.iter().flat_map(|group| &group.recorded);
        let mut of: BTreeMap<u32, OfBucket> =
            recorded.map(|(_, instance, _)| (*instance, OfBucket::default())).collect();
        for (at, node) in (0..).zip(&self.graph.nodes) {
            let Some(of) = of.get_mut(&node.instance) else { continue };
            match node.kind {
                None => of.transfers.push(at),
                Some(NodeKind::Arrive) => of.ranks.entry(node.rank).or_insert([at; 2])[0] = at,
                Some(NodeKind::Leave) => of.ranks.entry(node.rank).or_insert([at; 2])[1] = at,
                Some(_) => {}
            }
        }
        of
    }

    /// The transfers of recorded buckets, to the usual rank's end.
    fn transfers(&self, groups: &[(&Buckets, Vec<&OfBucket>)]) -> Transfers {
        let len_ns =
            |node: u32| self.graph.spans.get(self.graph.nodes[node as usize].own as usize).map_or(0, |s| s.len_ns);
        let mut lengths: BTreeMap<i64, BTreeMap<i64, Vec<i64>>> = BTreeMap::new();
        let mut sizes = BTreeSet::new();
        for (group, nodes) in groups {
            let of_comm = lengths.entry(group.comm_id).or_default();
            for ((_, _, bytes), of) in group.recorded.iter().zip(nodes) {
                let leaving = lower_median(of.ranks.values().map(|[_, leave]| len_ns(*leave))).unwrap_or(0);
                let transfer: i64 = of.transfers.iter().map(|node| len_ns(*node)).sum();
                of_comm.entry(*bytes).or_default().push(transfer + leaving);
                sizes.insert(*bytes);
            }
        }
        let medians = |sizes: BTreeMap<i64, Vec<i64>>| -> Vec<(i64, i64)> {
            sizes.into_iter().filter_map(|(bytes, ns)| Some((bytes, lower_median(ns)?))).collect()
        };
        let medians_of = lengths.into_iter().map(|(comm_id, sizes)| (comm_id, medians(sizes))).collect();
        Transfers { bound: Bound::Expected, sizes: sizes.into_iter().collect(), medians_of }
    }
}

/// Replaces buckets in the graph of a run.
struct Change<'a> {
    run: &'a Scaled,
    /// The ends of its nodes in the recording.
    ends_ns: &'a [i64],
    changes: Changes,
    /// For each end of a recorded bucket, the end of the bucket that holds its last gradient now, and when the host hands over that one. For
    /// each arrival, the node at which the rank has its gradients.
    now: BTreeMap<u32, (u32, i64)>,
}

impl Change<'_> {
    /// Replaces the buckets with these nodes. The instances of the new ones begin at `first`, and their transfers take `len_ns`.
    fn replace(
        &mut self,
        recorded: &[&OfBucket],
        replacing: &[Replacing],
        (first, len_ns): (u32, &dyn Fn(i64) -> i64),
        group: &Buckets,
    ) -> Option<()> {
        let last = replacing.len().checked_sub(1)?;
        let ranks: Vec<u32> = recorded[0].ranks.keys().copied().collect();
        let ready: Vec<Ready> = ranks.iter().map(|rank| self.ready(recorded, *rank)).collect::<Option<_>>()?;
        for of in recorded {
            self.changes.removed.extend(of.transfers.iter().chain(of.ranks.values().flatten()));
        }
        let mut left: Vec<Vec<u32>> = vec![Vec::with_capacity(replacing.len()); ranks.len()];
        for (instance, one) in (first..).zip(replacing) {
            let of = |rank: u32| recorded[one.last].ranks[&rank];
            let arrivals = ranks.iter().zip(&ready).zip(&left).map(|((rank, ready), left)| {
                let mut paths = vec![ready.path(one, group)];
                let queue = |from: &u32| Path { from: *from, fixed_ns: ready.queued_ns, ..Path::default() };
                paths.extend(left.last().map(queue));
                self.add_like((of(*rank)[0], *rank, instance), paths)
            });
            let arrivals: Vec<u32> = arrivals.collect();
            let own = (self.run.graph.spans.len() + self.changes.spans.len()) as u32;
            let span =
                Span { kind: SpanKind::Transfer, rank: NONE, at: instance, len_ns: len_ns(one.bytes), contended_ns: 0 };
            self.changes.spans.push(span);
            let paths = arrivals.into_iter().map(|from| Path { from, ..Path::default() }).collect();
            let transfer = self.add((Node { own, ..Node::bare(None, NONE, instance) }, paths, 0));
            for (rank, left) in ranks.iter().zip(&mut left) {
                let path = Path { from: transfer, ..Path::default() };
                left.push(self.add_like((of(*rank)[1], *rank, instance), vec![path]));
            }
        }
        for (at, of) in recorded.iter().enumerate() {
            let ends_before = |one: &Replacing| one.last < at || one.last == at && one.share < 1.0;
            let holder = replacing.partition_point(ends_before).min(last);
            let handed_over = recorded[replacing[holder].last].ranks.values();
            let handed_over = handed_over.map(|[arrive, _]| self.run.graph.nodes[*arrive as usize].at_ns);
            let now = left.iter().map(|left| left[holder]).zip(handed_over);
            self.now.extend(of.ranks.values().map(|[_, leave]| *leave).zip(now));
        }
        Some(())
    }

    /// Adds a node at the place of a recorded one in the program.
    fn add_like(&mut self, (like, rank, instance): (u32, u32, u32), paths: Vec<Path>) -> u32 {
        let Node { kind, at_ns, segment, .. } = self.run.graph.nodes[like as usize];
        let node = Node { at_ns, segment, ..Node::bare(kind, rank, instance) };
        self.add((node, paths, self.run.passed[like as usize]))
    }

    fn add(&mut self, added: (Node, Vec<Path>, u32)) -> u32 {
        self.changes.added.push(added);
        (self.run.graph.nodes.len() + self.changes.added.len()) as u32 - 1
    }

    /// Adds the nodes at which a rank has the gradients of recorded buckets: they wait for what the arrivals waited for, but for no
    /// bucket before. Where nothing else is known, a bucket is ready as long after the one before it as in the recording. `None` if no
    /// arrival waits for a bucket: then something else that was not recorded keeps them in order.
    fn ready(&mut self, recorded: &[&OfBucket], rank: u32) -> Option<Ready> {
        let leaves: BTreeSet<u32> = recorded.iter().map(|of| of.ranks[&rank][1]).collect();
        let (mut nodes, mut queued): (Vec<(u32, i64)>, _) = (Vec::with_capacity(recorded.len()), Vec::new());
        for of in recorded {
            let arrive = of.ranks[&rank][0];
            let all: Vec<Path> = self.run.graph.paths_to(arrive as usize).collect();
            let (queue, own): (Vec<Path>, Vec<Path>) = all.iter().partition(|path| leaves.contains(&path.from));
            queued.extend(queue.iter().map(|path| path.fixed_ns + path.late_ns));
            let done_ns = |paths: &[Path]| paths.iter().map(|path| ready_ns(path, self.ends_ns)).max();
            let end_ns = self.ends_ns[arrive as usize];
            let at_ns = end_ns - done_ns(&all).zip(done_ns(&own)).map_or(0, |(all_ns, own_ns)| all_ns - own_ns);
            let after = |(from, ns): &(u32, i64)| Path { from: *from, fixed_ns: at_ns - ns, ..Path::default() };
            let own = if own.is_empty() { nodes.last().map(after).into_iter().collect() } else { own };
            let mut node = self.run.graph.nodes[arrive as usize];
            (node.kind, node.instance) = (Some(NodeKind::Host), NONE);
            let ready = self.add((node, own, self.run.passed[arrive as usize]));
            self.now.insert(arrive, (ready, i64::MIN));
            nodes.push((ready, at_ns));
        }
        Some(Ready { nodes, queued_ns: lower_median(queued)? })
    }

    /// The changes, in which work that waited for a recorded bucket waits for the bucket that holds its last gradient. Work that the host did
    /// before it hands over that bucket cannot wait for it. `None` if such work waited for nothing else.
    fn redirected(self) -> Option<Changes> {
        let Self { run, mut changes, now, .. } = self;
        let moved = |path: &Path, at_ns: i64| match now.get(&path.from) {
            Some((_, handed_over_ns)) if at_ns <= *handed_over_ns => None,
            Some((from, _)) => Some(Path { from: *from, ..*path }),
            None => Some(*path),
        };
        for (at, node) in (0..).zip(&run.graph.nodes) {
            let paths = run.graph.paths_to(at as usize);
            if changes.removed.contains(&at) {
                changes.paths.insert(at, Vec::new());
            } else if paths.clone().any(|path| now.contains_key(&path.from)) {
                let paths: Vec<Path> = paths.filter_map(|path| moved(&path, node.at_ns)).collect();
                changes.paths.insert(at, (!paths.is_empty()).then_some(paths)?);
            }
        }
        for (node, paths, _) in &mut changes.added {
            *paths = paths.iter().filter_map(|path| moved(path, node.at_ns)).collect();
        }
        Some(changes)
    }
}

impl Ready {
    /// The path to the arrival at a bucket, from where the rank has all gradients of the recorded bucket before.
    fn path(&self, one: &Replacing, group: &Buckets) -> Path {
        let (last, last_ns) = self.nodes[one.last];
        let path = |from: u32, ns: f64| Path { from, fixed_ns: ns.round() as i64, ..Path::default() };
        if one.share >= 1.0 {
            return path(last, 0.0);
        }
        if let Some((from, ns)) = one.last.checked_sub(1).map(|before| self.nodes[before]) {
            return path(from, (last_ns - ns).max(0) as f64 * one.share);
        }
        // The gradients of the first bucket take as long as those of the others, byte by byte.
        let others: i64 = group.recorded[1..].iter().map(|(_, _, bytes)| bytes).sum();
        let others_ns = (self.nodes[self.nodes.len() - 1].1 - last_ns).max(0) as f64;
        let first_ns = others_ns * group.recorded[0].2 as f64 / others.max(1) as f64;
        path(last, -first_ns * (1.0 - one.share))
    }
}

/// Pieces of at most `limit` bytes, equally large.
fn even(bytes: i64, limit: i64) -> Vec<i64> {
    let count = (bytes / limit.max(1)).clamp(1, 1 << 16);
    let until = |at: i64| (i128::from(bytes) * i128::from(at) / i128::from(count)) as i64;
    (0..count).map(|at| until(at + 1) - until(at)).collect()
}

/// The lengths of transfers by communicator and size.
struct Transfers {
    bound: Bound,
    /// The sizes that were recorded.
    sizes: Vec<i64>,
    /// For each communicator, sizes in ascending order and the median length of their transfers.
    medians_of: BTreeMap<i64, Vec<(i64, i64)>>,
}

impl Transfers {
    fn ns(&self, comm_id: i64, bytes: i64) -> i64 {
        let length_ns = self.medians_of.get(&comm_id).map_or(0.0, |medians| length_ns(medians, bytes));
        // How far the nearest recorded size is, in powers of 4.
        let away = |size: &i64| ((bytes.max(1) as f64 / (*size).max(1) as f64).ln() / 4.0_f64.ln()).abs();
        let nearest = self.sizes.iter().map(away).fold(f64::INFINITY, f64::min);
        let error = if nearest <= NEAR_SIZE { 0.0 } else { (UNKNOWN_SIZE * nearest.max(1.0)).min(1.0) };
        let factor = match self.bound {
            Bound::Short => 1.0 - error,
            Bound::Expected => 1.0,
            // Large messages leave the caches.
            Bound::Long if self.sizes.iter().all(|size| *size < bytes) => 1.0 + 2.0 * error,
            Bound::Long => 1.0 + error,
        };
        (factor * length_ns).round() as i64
    }
}

/// The length of a transfer by those of recorded sizes: between two of them on the line through both; below the smallest one on the
/// line through the first two, or in proportion if that line begins below 0; beyond the largest one by the smaller one of its time
/// per byte and the rise before it.
fn length_ns(medians: &[(i64, i64)], bytes: i64) -> f64 {
    let point = |at: usize| medians.get(at).map(|(bytes, ns)| (*bytes as f64, *ns as f64));
    let x = bytes as f64;
    let at = medians.partition_point(|(size, _)| *size < bytes);
    let line = |(x0, y0): (f64, f64), (x1, y1): (f64, f64)| y0 + (x - x0) * (y1 - y0) / (x1 - x0);
    match (at.checked_sub(1).and_then(point), point(at)) {
        (Some(below), Some(above)) => line(below, above),
        (None, Some(first)) => {
            let proportional = first.1 * x / first.0;
            point(1).map_or(proportional, |second| line(first, second).clamp(proportional, first.1.max(proportional)))
        }
        (Some(last), None) => {
            let rate = last.1 / last.0;
            let before = at.checked_sub(2).and_then(point);
            let rise = before.map_or(rate, |before| ((last.1 - before.1) / (last.0 - before.0)).clamp(0.0, rate));
            last.1 + (x - last.0) * rise
        }
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_recorded_sizes() {
        // A latency of 10 and 1 a byte; then 3 a byte.
        let with_latency = [(20, 30), (40, 50)];
        let lengths =
            |medians: &[(i64, i64)], sizes: [i64; 4]| sizes.map(|bytes| length_ns(medians, bytes).round() as i64);
        assert_eq!(lengths(&with_latency, [10, 20, 30, 60]), [20, 30, 40, 70]);
        assert_eq!(lengths(&[(20, 30), (40, 90)], [10, 20, 30, 80]), [15, 30, 60, 180], "slower beyond the caches");
        assert_eq!(lengths(&[(20, 30)], [10, 20, 40, 60]), [15, 30, 60, 90]);
        assert_eq!(length_ns(&[], 5), 0.0);
    }

    #[test]
    fn unknown_gradients_are_divided_evenly() {
        assert_eq!(even(100, 30), [33, 33, 34]);
        assert_eq!((even(20, 30), even(7, 0).len()), (vec![20], 7));
    }
}
