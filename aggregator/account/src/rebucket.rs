//! The replay of a job whose gradient buckets have another size.
//!
//! ```text
//!   recorded   work   ####w3 w2 | w1 w0 |            buckets of two gradients
//!              comm             [= 0 ==][= 1 ==]
//!   smaller    work   ####w3 | w2 | w1 | w0 |        gradients are ready in proportion to their bytes
//!              comm          [0 ][1 ][2 ][3 ]
//! ```
//!
//! A bucket closes when its gradients reach the limit; a gradient is never split, and the first bucket closes at 1 MiB, as in
//! DistributedDataParallel. Between two recorded buckets, gradients become ready in proportion to their bytes. A transfer takes
//! as long as recorded transfers of that size, and of sizes between recorded ones on the line between them. Where no transfer was
//! recorded whose size is within a quarter, the length may be off by 30 % for each factor of 4 between the sizes; a larger one than
//! all recorded ones may be longer by twice that.
//!
//! The rank's last collective of the step comes after the update, which needs all buckets. If no bucket was exposed in the
//! recording, the work between them is at most the time between their ends.

use std::collections::BTreeMap;

use crate::nodes::{Leave, NONE, Node, Work};
use crate::order::in_order;
use crate::replay::Replay;
use model::stats::lower_median;

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

/// Facts about gradients that the times of their buckets do not tell.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// The sizes of the gradients of a bucket in the order in which they fill it, by its number.
    pub sizes: BTreeMap<i32, Vec<i64>>,
    /// How long a bucket waited in the queue after it was full, by the position of the rank, communicator, step and bucket.
    pub queued_ns: BTreeMap<(usize, i64, i32, i32), i64>,
}

/// The buckets of a step and communicator: recorded instances by number, and those that replace them.
struct Buckets {
    /// Instances with their bytes.
    recorded: Vec<(u32, i64)>,
    replacing: Vec<Replacing>,
}

/// A bucket that replaces recorded ones.
struct Replacing {
    instance: u32,
    bytes: i64,
    /// The recorded bucket that holds its last gradient, and the share of that bucket's bytes up to its end.
    last: usize,
    share: f64,
}

/// A place in the work of a rank, in the recording and if it works as a typical rank.
#[derive(Clone, Copy, Default)]
struct Progress {
    own_ns: i64,
    typical_ns: i64,
}

impl Progress {
    /// The place at a share of the way to `to`.
    fn towards(self, to: Self, share: f64) -> Self {
        let between = |from: i64, to: i64| from + ((to - from) as f64 * share).round() as i64;
        Self { own_ns: between(self.own_ns, to.own_ns), typical_ns: between(self.typical_ns, to.typical_ns) }
    }
}

/// The nodes of one rank.
struct Chain<'a> {
    nodes: &'a [u32],
    /// The progress at each of them.
    progress: Vec<Progress>,
    of_instance: BTreeMap<u32, usize>,
    /// The number and the begin of the window of each of them.
    windows: Vec<(usize, i64)>,
}

impl<'a> Chain<'a> {
    fn of(replay: &Replay, nodes: &'a [u32]) -> Self {
        let (mut progress, mut of_instance) = (Vec::with_capacity(nodes.len()), BTreeMap::new());
        let mut now = Progress::default();
        for (index, at) in nodes.iter().enumerate() {
            let node = &replay.nodes[*at as usize];
            now.own_ns += node.work.own_ns;
            now.typical_ns += node.typical.own_ns;
            progress.push(now);
            of_instance.insert(node.instance, index);
        }
        Self { nodes, progress, of_instance, windows: replay.windows(nodes) }
    }
}

/// The replacing buckets of one rank.
struct Placed<'a> {
    /// The progress at which each is ready, and the recorded bucket that holds its last gradient, as a position in the chain.
    inserted: Vec<(Progress, usize, &'a Replacing)>,
    /// For each recorded bucket of the chain, the instance that holds its last gradient now.
    holder: BTreeMap<usize, u32>,
    /// Whether each node of the chain stays.
    kept: Vec<bool>,
}

impl Replay {
    /// The replay with buckets that close at `limit_bytes`. `None` if no step has two buckets, which show when gradients are
    /// ready, or if the order of collectives contradicts itself.
    pub(super) fn rebucketed(&self, limit_bytes: i64, gradients: &Gradients, bound: Bound) -> Option<Self> {
        let mut new = Self {
            nodes: Vec::new(),
            step_of: self.step_of.clone(),
            comm_of: self.comm_of.clone(),
            bucket_of: self.bucket_of.clone(),
            span_of: self.span_of.clone(),
            ..*self
        };
        let all = self.buckets(limit_bytes, gradients, &mut new);
        if all.is_empty() {
            return None;
        }
        let transfers = Transfers { bound, ..Transfers::of(self, &all) };
        let mut chains: Vec<Vec<u32>> = vec![Vec::new(); self.ranks];
        for (at, node) in self.nodes.iter().enumerate() {
            chains[node.rank as usize].push(at as u32);
        }
        // Positions of nodes before they are put in order, and those of the recorded nodes among them.
        let mut nodes: Vec<Node> = Vec::new();
        let mut place_of: Vec<u32> = vec![NONE; self.nodes.len()];
        for chain in &chains {
            self.rechain(chain, (&all, gradients), &transfers, (&mut nodes, &mut place_of));
        }
        for (place, node) in nodes.iter_mut().enumerate().filter(|(_, node)| !node.waits_in_place) {
            // A collective that begins later now was not waited for.
            let waited = place_of.get(node.waited as usize).copied();
            node.waited = waited.filter(|waited| (*waited as usize) < place).unwrap_or(NONE);
            if let Leave::After(of, ns) = node.leave {
                node.leave = Leave::After(place_of[of as usize], ns);
            }
        }
        new.nodes = in_order(nodes)?;
        Some(new)
    }

    /// The buckets of each step and communicator. The instances that replace them are added to `new`.
    fn buckets(&self, limit_bytes: i64, gradients: &Gradients, new: &mut Self) -> Vec<Buckets> {
        let mut groups: BTreeMap<(i32, i64), BTreeMap<i32, (u32, i64)>> = BTreeMap::new();
        for (instance, bucket) in self.bucket_of.iter().enumerate() {
            if let (Some(step), Some((number, bytes))) = (self.step_of[instance], bucket) {
                let group = groups.entry((step, self.comm_of[instance])).or_default();
                group.insert(*number, (instance as u32, *bytes));
            }
        }
        let mut all = Vec::new();
        for ((step, comm_id), group) in groups.into_iter().filter(|(_, group)| group.len() > 1) {
            let pieces = group.iter().enumerate().flat_map(|(at, (number, (_, bytes)))| {
                let known = gradients.sizes.get(number).filter(|sizes| sizes.iter().sum::<i64>() == *bytes);
                let sizes = known.cloned().unwrap_or_else(|| even(*bytes, limit_bytes));
                let before = sizes.clone().into_iter().scan(0, |sum, size| {
                    *sum += size;
                    Some(*sum)
                });
                let shares = before.map(|end| end as f64 / *bytes as f64).collect::<Vec<_>>();
                sizes.into_iter().zip(shares).map(move |(size, share)| (at, size, share)).collect::<Vec<_>>()
            });
            let (mut replacing, mut open, mut limit) = (Vec::new(), 0, limit_bytes.min(FIRST_BUCKET_BYTES));
            let mut end = None;
            let mut close = |bytes: i64, (last, share): (usize, f64)| {
                replacing.push(Replacing { instance: new.step_of.len() as u32, bytes, last, share });
                new.step_of.push(Some(step));
                new.comm_of.push(comm_id);
                new.bucket_of.push(Some((replacing.len() as i32 - 1, bytes)));
            };
            for (at, size, share) in pieces {
                open += size;
                end = Some((at, share));
                if open >= limit {
                    close(std::mem::take(&mut open), (at, share));
                    limit = limit_bytes;
                }
            }
            if let Some(end) = end.filter(|_| open > 0) {
                close(open, end);
            }
            all.push(Buckets { recorded: group.into_values().collect(), replacing });
        }
        all
    }

    /// Puts the replacing buckets of one rank between its other nodes, where their gradients are ready.
    fn rechain(
        &self,
        chain: &[u32],
        (all, gradients): (&[Buckets], &Gradients),
        transfers: &Transfers,
        (nodes, place_of): (&mut Vec<Node>, &mut Vec<u32>),
    ) {
        let chain = Chain::of(self, chain);
        let Placed { inserted, holder, kept } = self.placed(&chain, all, gradients);
        let mut emit = Emit { nodes, done: Progress::default(), entered: NONE, before: BTreeMap::new(), window: None };
        let mut inserted = inserted.into_iter().peekable();
        let mut place_of_instance: BTreeMap<u32, u32> = BTreeMap::new();
        for (index, at) in chain.nodes.iter().enumerate() {
            let (progress, window) = (chain.progress[index], chain.windows[index]);
            let due = |(at, like, _): &(Progress, usize, &Replacing)| {
                at.own_ns <= progress.own_ns && chain.windows[*like] == window || *like <= index
            };
            while let Some((at, like, one)) = inserted.next_if(due) {
                let window = chain.windows[like];
                let like = &self.nodes[chain.nodes[like] as usize];
                let (instance, comm_id) = (one.instance, self.comm_of[like.instance as usize]);
                let leave = Leave::AfterLast(transfers.ns(comm_id, one.bytes));
                let queued_ns = transfers.queued_ns;
                let node = Node { instance, waited: NONE, has_unknown_wait: false, leave, queued_ns, ..*like };
                place_of_instance.insert(instance, emit.push(node, at, (comm_id, window)));
            }
            if kept[index] {
                let node = self.nodes[*at as usize];
                let comm_id = self.comm_of[node.instance as usize];
                place_of[*at as usize] = emit.push(node, progress, (comm_id, window));
            }
        }
        for (index, instance) in holder {
            place_of[chain.nodes[index] as usize] = place_of_instance.get(&instance).copied().unwrap_or(NONE);
        }
        if transfers.bound != Bound::Short {
            for buckets in all {
                let of_chain = (chain.nodes, &chain.of_instance);
                self.await_buckets(of_chain, buckets, (nodes, place_of), &place_of_instance);
            }
        }
    }

    /// Where the replacing buckets of one rank are ready.
    fn placed<'a>(&self, chain: &Chain<'_>, all: &'a [Buckets], gradients: &Gradients) -> Placed<'a> {
        let mut placed = Placed { inserted: Vec::new(), holder: BTreeMap::new(), kept: vec![true; chain.nodes.len()] };
        for buckets in all {
            let here = buckets.recorded.iter().map(|(instance, _)| chain.of_instance.get(instance).copied());
            let Some(here) = here.collect::<Option<Vec<usize>>>() else { continue };
            here.iter().for_each(|index| placed.kept[*index] = false);
            let ready_at = |index: &usize| {
                // While the bucket waited in its queue, the rank worked ahead.
                let node = &self.nodes[chain.nodes[*index] as usize];
                let ahead_ns = self.queued_ns(node, gradients);
                let Progress { own_ns, typical_ns } = chain.progress[*index];
                Progress {
                    own_ns: own_ns - ahead_ns.min(node.work.own_ns),
                    typical_ns: typical_ns - ahead_ns.min(node.typical.own_ns),
                }
            };
            let ready = Ready::of(&here.iter().map(ready_at).collect::<Vec<_>>(), &buckets.recorded);
            placed.inserted.extend(buckets.replacing.iter().map(|one| (ready.at(one), here[one.last], one)));
            for (number, index) in here.iter().enumerate() {
                let covers = |one: &&Replacing| one.last > number || (one.last == number && one.share >= 1.0);
                placed.holder.extend(buckets.replacing.iter().find(covers).map(|one| (*index, one.instance)));
            }
        }
        placed.inserted.sort_by_key(|(at, index, one)| (at.own_ns, *index, one.instance));
        placed
    }

    /// Lets the last collective of a step wait for all of its buckets, if it waited for none of them in the recording because they
    /// had ended by then.
    fn await_buckets(
        &self,
        (chain, of_instance): (&[u32], &BTreeMap<u32, usize>),
        buckets: &Buckets,
        (nodes, place_of): (&mut [Node], &[u32]),
        place_of_instance: &BTreeMap<u32, u32>,
    ) {
        let Some((last, step)) = buckets.recorded.last().map(|(last, _)| (*last, self.step_of[*last as usize])) else {
            return;
        };
        let Some(index) = of_instance.get(&last).copied() else { return };
        let of_step = |at: &&u32| self.step_of[self.nodes[**at as usize].instance as usize] == step;
        let behind = &chain[index + 1..];
        let Some(waiting) = behind.iter().take_while(of_step).last().or(behind.first()) else { return };
        let spare_ns = self.nodes[*waiting as usize].arrival_ns - self.nodes[chain[index] as usize].end_ns;
        let awaited = buckets.replacing.last().and_then(|one| place_of_instance.get(&one.instance));
        let (Some(awaited), Some(node)) = (awaited, nodes.get_mut(place_of[*waiting as usize] as usize)) else {
            return;
        };
        if node.waited == NONE && self.nodes[*waiting as usize].waited == NONE && spare_ns >= 0 {
            node.waited = *awaited;
            node.work.after_ns = spare_ns;
            node.typical.after_ns = spare_ns;
            node.waits_in_place = true;
        }
    }
}

impl Replay {
    /// How long the bucket of a node waited in its queue.
    fn queued_ns(&self, node: &Node, gradients: &Gradients) -> i64 {
        let instance = node.instance as usize;
        let key = self.step_of[instance]
            .zip(self.bucket_of[instance])
            .map(|(step, (bucket, _))| (node.rank as usize, self.comm_of[instance], step, bucket));
        key.and_then(|key| gradients.queued_ns.get(&key)).copied().unwrap_or(0).max(0)
    }

    /// For each node of a rank's chain, the window that it is in: its number, and its begin.
    fn windows(&self, chain: &[u32]) -> Vec<(usize, i64)> {
        let (mut windows, mut number, mut begin_ns) = (Vec::with_capacity(chain.len()), 0, 0);
        for (index, at) in chain.iter().enumerate() {
            let node = &self.nodes[*at as usize];
            if index == 0 || node.entered == NONE {
                (number, begin_ns) = (number + 1, node.arrival_ns - node.work.own_ns);
            }
            windows.push((number, begin_ns));
        }
        windows
    }
}

/// Pieces of at most `limit` bytes, equally large.
fn even(bytes: i64, limit: i64) -> Vec<i64> {
    let count = (bytes / limit.max(1)).clamp(1, 1 << 16);
    (0..count).map(|at| bytes * (at + 1) / count - bytes * at / count).collect()
}

/// Adds the nodes of one rank, one after the other.
struct Emit<'a> {
    nodes: &'a mut Vec<Node>,
    done: Progress,
    entered: u32,
    /// The latest node of each communicator.
    before: BTreeMap<i64, u32>,
    window: Option<usize>,
}

impl Emit<'_> {
    /// `window` is the number of its window, and its begin.
    fn push(&mut self, mut node: Node, at: Progress, (comm_id, window): (i64, (usize, i64))) -> u32 {
        let place = self.nodes.len() as u32;
        let begins = self.window.replace(window.0) != Some(window.0);
        node.entered = if begins { NONE } else { self.entered };
        node.before = self.before.insert(comm_id, place).unwrap_or(NONE);
        let own_ns = (at.own_ns - self.done.own_ns).max(0);
        let typical_ns = (at.typical_ns - self.done.typical_ns).max(0);
        node.work = Work { own_ns, after_ns: node.work.after_ns.min(own_ns) };
        if begins {
            node.arrival_ns = window.1 + own_ns;
        }
        node.typical = Work { own_ns: typical_ns, after_ns: node.typical.after_ns.min(typical_ns) };
        self.done =
            Progress { own_ns: at.own_ns.max(self.done.own_ns), typical_ns: at.typical_ns.max(self.done.typical_ns) };
        self.entered = place;
        self.nodes.push(node);
        place
    }
}

/// When gradients are ready: the progress at the end of each recorded bucket.
struct Ready<'a> {
    /// Where the first gradient of the first bucket begins, then the ends of the buckets.
    ends: Vec<Progress>,
    recorded: &'a [(u32, i64)],
}

impl<'a> Ready<'a> {
    fn of(ends: &[Progress], recorded: &'a [(u32, i64)]) -> Self {
        let (first, last) = (ends[0], ends[ends.len() - 1]);
        // The gradients of the first bucket take as long as those of the others, byte by byte.
        let others: i64 = recorded[1..].iter().map(|(_, bytes)| bytes).sum();
        let share = recorded[0].1 as f64 / others.max(1) as f64;
        let begin = first.towards(last, -share);
        let begin = Progress { own_ns: begin.own_ns.max(0), typical_ns: begin.typical_ns.max(0) };
        Self { ends: std::iter::once(begin).chain(ends.iter().copied()).collect(), recorded }
    }

    fn at(&self, one: &Replacing) -> Progress {
        debug_assert!(one.last < self.recorded.len());
        self.ends[one.last].towards(self.ends[one.last + 1], one.share)
    }
}

/// The lengths of transfers by communicator and size.
struct Transfers {
    bound: Bound,
    /// The sizes that were recorded.
    sizes: Vec<i64>,
    /// For each communicator, sizes in ascending order and the median length of their transfers.
    medians_of: BTreeMap<i64, Vec<(i64, i64)>>,
    /// From the end of a bucket to the begin of the next one that waits for it.
    queued_ns: i64,
}

impl Transfers {
    fn of(replay: &Replay, all: &[Buckets]) -> Self {
        let sizes: BTreeMap<u32, i64> = all.iter().flat_map(|buckets| buckets.recorded.iter().copied()).collect();
        let mut lengths: BTreeMap<i64, BTreeMap<i64, Vec<i64>>> = BTreeMap::new();
        let mut queued = Vec::new();
        for node in &replay.nodes {
            let Some(bytes) = sizes.get(&node.instance) else { continue };
            if let Leave::AfterLast(ns) = node.leave {
                let of_comm = lengths.entry(replay.comm_of[node.instance as usize]).or_default();
                of_comm.entry(*bytes).or_default().push(ns);
            }
            queued.extend((node.before != NONE && node.queued_ns <= replay.max_queue_gap_ns).then_some(node.queued_ns));
        }
        let medians = |sizes: BTreeMap<i64, Vec<i64>>| -> Vec<(i64, i64)> {
            sizes.into_iter().filter_map(|(bytes, ns)| Some((bytes, lower_median(ns)?))).collect()
        };
        let mut recorded: Vec<i64> = sizes.values().copied().collect();
        recorded.sort_unstable();
        recorded.dedup();
        Self {
            bound: Bound::Expected,
            sizes: recorded,
            medians_of: lengths.into_iter().map(|(comm_id, sizes)| (comm_id, medians(sizes))).collect(),
            queued_ns: lower_median(queued).unwrap_or(0),
        }
    }

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
