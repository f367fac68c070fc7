//! The nodes of a replay: each rank at each collective, and what it depends on.

use rustc_hash::FxHashMap;

use crate::messages::lane;
use model::stats::{lower_median, robust_sigma_of_sorted};
use topology::arrivals::{Arrival, Joined};
use topology::join::Join;

/// The position of a node that does not exist.
pub(super) const NONE: u32 = u32::MAX;

/// The least ranks whose work shows how much ranks vary, although one of them may be slow.
const LEAST_VARYING: usize = 4;

/// When a rank leaves a collective.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leave {
    /// So long after the last arrival.
    AfterLast(i64),
    /// So long after the arrival of this node, and not before its own arrival.
    After(u32, i64),
}

/// The own work before an arrival.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Since the rank was ready for the collective that it entered before.
    pub(super) own_ns: i64,
    /// Since the end of the collective that it waited for.
    pub(super) after_ns: i64,
}

/// One rank at one collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) rank: u32,
    pub(super) instance: u32,
    /// The node of the collective that the rank entered before.
    pub(super) entered: u32,
    /// The node of the collective that the own work waited for.
    pub(super) waited: u32,
    /// The node of the previous collective of the communicator.
    pub(super) before: u32,
    /// From the end of `before` to the arrival.
    pub(super) queued_ns: i64,
    /// Neither own work nor a known collective explains the whole time before the arrival.
    pub(super) has_unknown_wait: bool,
    /// `waited` is final, in a replay with other nodes.
    pub(super) waits_in_place: bool,
    /// Recorded.
    pub(super) arrival_ns: i64,
    /// Recorded; without an end, the arrival.
    pub(super) end_ns: i64,
    pub(super) work: Work,
    /// The work of a typical rank.
    pub(super) typical: Work,
    /// The standard deviation of the own work of the ranks that do the same; 0 if they are too few to tell.
    pub(super) sigma_ns: i64,
    pub(super) leave: Leave,
}

pub(super) struct Builder<'a> {
    pub(super) join: &'a Join,
    /// The number of ranks.
    pub(super) ranks: usize,
    max_queue_gap_ns: i64,
    pub(super) nodes: Vec<Node>,
    /// For each node, the position of its arrival among those of its instance.
    of: Vec<u32>,
    /// For each instance the node of its first arrival; the others follow in `by_instance`.
    by_instance: Vec<Vec<u32>>,
}

impl<'a> Builder<'a> {
    pub(super) fn of(join: &'a Join, max_queue_gap_ns: i64) -> Self {
        let instances = (0..).zip(&join.instances);
        let mut keys: Vec<(u32, u32)> =
            instances.flat_map(|(i, instance)| (0..instance.arrivals.len() as u32).map(move |a| (i, a))).collect();
        let arrival = |(i, a): &(u32, u32)| &join.instances[*i as usize].arrivals[*a as usize];
        keys.sort_by_key(|key| (arrival(key).arrival_ns, arrival(key).stretch, arrival(key).rank));
        let node = |key: &(u32, u32)| {
            let a = arrival(key);
            Node {
                rank: a.rank as u32,
                instance: key.0,
                entered: NONE,
                waited: NONE,
                before: NONE,
                queued_ns: 0,
                has_unknown_wait: false,
                waits_in_place: false,
                arrival_ns: a.arrival_ns,
                end_ns: a.end_ns().map_or(a.arrival_ns, |end| end.max(a.arrival_ns)),
                work: Work::default(),
                typical: Work::default(),
                sigma_ns: 0,
                leave: Leave::AfterLast(0),
            }
        };
        let nodes: Vec<Node> = keys.iter().map(node).collect();
        let mut by_instance: Vec<Vec<u32>> = join.instances.iter().map(|i| vec![NONE; i.arrivals.len()]).collect();
        for (at, (i, a)) in (0..).zip(&keys) {
            by_instance[*i as usize][*a as usize] = at;
        }
        let of = keys.into_iter().map(|(_, a)| a).collect();
        Self { join, ranks: join.same_work.stages.len(), max_queue_gap_ns, nodes, of, by_instance }
    }

    pub(super) fn instance(&self, at: usize) -> &'a Joined {
        &self.join.instances[self.nodes[at].instance as usize]
    }

    pub(super) fn arrival(&self, at: usize) -> &'a Arrival {
        &self.instance(at).arrivals[self.of[at] as usize]
    }

    /// Connects each node with the earlier ones that it depends on. Clocks may contradict each other, so that an earlier
    /// collective seems later; it is ignored then.
    pub(super) fn link(&mut self) {
        let mut of_stretch: Vec<Vec<u32>> = self.join.stretches().map(|stretches| vec![NONE; stretches]).collect();
        let mut of_communicator: FxHashMap<(usize, i64), u32> = FxHashMap::default();
        let mut of_lane: FxHashMap<(usize, i64, (bool, usize)), u32> = FxHashMap::default();
        for at in 0..self.nodes.len() {
            let (instance, a) = (self.instance(at), self.arrival(at));
            let earlier = |stretch: Option<u32>| {
                stretch.and_then(|stretch| of_stretch[a.rank].get(stretch as usize).copied()).unwrap_or(NONE)
            };
            let (entered, waited) = (earlier(a.entered()), earlier(a.waited()));
            let ends_before = |node: u32| node != NONE && self.nodes[node as usize].end_ns <= a.arrival_ns;
            // Messages of each direction may have a queue of their own.
            let last = of_communicator.insert((a.rank, instance.comm_id), at as u32);
            let of_lane =
                lane(instance, a).and_then(|lane| of_lane.insert((a.rank, instance.comm_id, lane), at as u32));
            let ended = last.into_iter().chain(of_lane).filter(|node| ends_before(*node));
            let before = ended.max_by_key(|node| self.nodes[*node as usize].end_ns).unwrap_or(NONE);
            let (is_queue, has_waited) = (ends_before(before), ends_before(waited));
            let leave = self.leave(at);
            let queued_ns = if is_queue { a.arrival_ns - self.nodes[before as usize].end_ns } else { 0 };
            let is_queued = is_queue && queued_ns <= self.max_queue_gap_ns;
            let node = &mut self.nodes[at];
            node.entered = entered;
            node.before = if is_queue { before } else { NONE };
            node.queued_ns = queued_ns;
            // A queue explains the begin.
            node.waited = if has_waited && !is_queued { waited } else { NONE };
            node.leave = leave;
            of_stretch[a.rank][a.stretch as usize] = at as u32;
        }
    }

    fn leave(&self, at: usize) -> Leave {
        let (instance, a) = (self.instance(at), self.arrival(at));
        let end_ns = self.nodes[at].end_ns;
        match a.end_ns() {
            None => Leave::AfterLast(0),
            Some(_) if instance.symmetric && end_ns >= instance.last_ns => Leave::AfterLast(end_ns - instance.last_ns),
            Some(_) if instance.symmetric => Leave::After(at as u32, end_ns - a.arrival_ns),
            Some(_) => {
                let of_instance = self.by_instance[self.nodes[at].instance as usize].iter().zip(&instance.arrivals);
                let awaited = of_instance.filter(|(_, other)| other.arrival_ns <= end_ns);
                let last = awaited.max_by_key(|(node, other)| (other.arrival_ns, **node == at as u32));
                last.map_or(Leave::AfterLast(0), |(node, other)| Leave::After(*node, end_ns - other.arrival_ns))
            }
        }
    }

    pub(super) fn is_queued(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        node.before != NONE && node.queued_ns <= self.max_queue_gap_ns
    }

    /// Splits the time of each rank into own work and dependencies, so that the unchanged replay gives the recorded times.
    pub(super) fn measure(&mut self) {
        let before_wait = self.before_wait();
        let belonging = self.belonging_in_rows(&self.belonging_ns(), &before_wait);
        let places = self.places();
        let messages = self.work_before_messages(&places);
        let mut since_begin_ns = vec![(None, 0_i64); self.ranks];
        let mut ready_ns = vec![0; self.nodes.len()];
        let mut ahead_ns = vec![0; self.ranks];
        for at in 0..self.nodes.len() {
            let a = self.arrival(at);
            let own_ns = self.own_ns(at);
            let step = self.instance(at).step;
            if since_begin_ns[a.rank].0 != step {
                since_begin_ns[a.rank] = (step, 0);
            }
            let (from_ns, ahead) = match self.nodes[at].entered {
                NONE => (a.arrival_ns - own_ns, 0),
                entered => (ready_ns[entered as usize], ahead_ns[a.rank]),
            };
            // The rank was ready for the previous collective after that wait already.
            if self.nodes[at].waited != NONE && self.nodes[self.nodes[at].waited as usize].end_ns <= from_ns {
                self.nodes[at].waited = NONE;
            }
            let node = self.nodes[at];
            let since_ns = (node.arrival_ns - from_ns).max(0);
            let all_ns = own_ns + ahead;
            let own_ns = if self.is_queued(at) {
                let belonging = match places.of.get(&(at as u32)) {
                    Some(way) => messages.before_ns(*way, since_begin_ns[a.rank].1),
                    None => belonging[at].filter(|_| !before_wait[at]),
                };
                belonging.map_or(all_ns, |ns| all_ns.min(ns)).clamp(0, since_ns)
            } else if node.waited != NONE {
                all_ns.min(since_ns)
            } else if a.own_ns().is_some() && since_ns > all_ns + self.max_queue_gap_ns {
                self.nodes[at].has_unknown_wait = true;
                all_ns
            } else {
                since_ns
            };
            let is_queued = self.is_queued(at);
            ahead_ns[a.rank] = if is_queued { (all_ns - own_ns).max(0) } else { 0 };
            ready_ns[at] = if is_queued { from_ns + own_ns } else { node.arrival_ns };
            let waited = (node.waited != NONE).then(|| self.nodes[node.waited as usize].end_ns);
            self.nodes[at].work = Work { own_ns, after_ns: waited.map_or(0, |end| node.arrival_ns - end) };
            since_begin_ns[a.rank].1 += own_ns;
        }
        self.wait_as_others_do(&places, &ready_ns);
    }

    /// The own time before a node, and before the collectives that were not matched since the one before.
    pub(super) fn own_ns(&self, at: usize) -> i64 {
        self.join.own_since_entered_ns(self.arrival(at))
    }

    /// The work that belongs to each instance: the lower median of the ranks that did not queue. Where all ranks queued, no
    /// rank shows it; then the work in a row of such collectives is spread evenly over them.
    fn belonging_ns(&self) -> Vec<Option<i64>> {
        let shown = |(nodes, instance): (&Vec<u32>, &Joined)| {
            let nodes = nodes.iter().zip(&instance.arrivals);
            lower_median(nodes.filter(|(node, _)| !self.is_queued(**node as usize)).filter_map(|(_, a)| a.own_ns()))
        };
        let shown: Vec<Option<i64>> = self.by_instance.iter().zip(&self.join.instances).map(shown).collect();
        let shares_ns = self.shares_ns(&shown);
        shown.into_iter().zip(shares_ns).map(|(shown, shares)| shown.or_else(|| lower_median(shares))).collect()
    }

    /// For each node, the work that belongs to its instance, `shown_ns`; less if the rank did less in a row of queued collectives than
    /// belongs to them. Where all ranks wait for a slow one, only that rank does not queue, so its long work is what is shown.
    ///
    /// ```text
    ///   rank 0   ##[~~~~~~~~~~AA][BB][CC]        b and c below A: 40 ns
    ///   rank 1   ############[AA]bbbb[BB]cccc[CC]    80 ns shown, 40 for each; of rank 0, 20 belong to each
    /// ```
    fn belonging_in_rows(&self, shown_ns: &[Option<i64>], before_wait: &[bool]) -> Vec<Option<i64>> {
        let of_node = |at: usize| shown_ns[self.nodes[at].instance as usize];
        let mut belonging: Vec<Option<i64>> = (0..self.nodes.len()).map(of_node).collect();
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); self.ranks];
        let mut close = |row: &mut Vec<usize>| {
            let sum = |of: &dyn Fn(usize) -> i64| row.iter().map(|at| of(*at).max(0)).fold(0_i64, i64::saturating_add);
            let (did_ns, belongs_ns) = (sum(&|at| self.own_ns(at)), sum(&|at| of_node(at).unwrap_or(0)));
            let share = did_ns as f64 / belongs_ns.max(1) as f64;
            for at in row.drain(..).filter(|_| share < 1.0) {
                belonging[at] = of_node(at).map(|ns| (ns as f64 * share).round() as i64);
            }
        };
        for (at, node) in self.nodes.iter().enumerate() {
            let row = &mut rows[node.rank as usize];
            if !self.is_queued(at) {
                close(row);
                continue;
            }
            row.push(at);
            if before_wait[at] {
                close(row);
            }
        }
        rows.iter_mut().for_each(close);
        belonging
    }

    /// For each node, whether the rank waited for its collective, or for a later one, before the next collective, or has no next one.
    /// Work before a wait does not move on to the collective after it, and work before the last collective has none to move on to.
    fn before_wait(&self) -> Vec<bool> {
        let mut next = vec![NONE; self.ranks];
        let mut before_wait = vec![false; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().rev() {
            let next = std::mem::replace(&mut next[node.rank as usize], at as u32);
            let waited = |next: &Node| self.nodes.get(next.waited as usize);
            before_wait[at] = self
                .nodes
                .get(next as usize)
                .is_none_or(|next| waited(next).is_some_and(|waited| waited.arrival_ns >= node.arrival_ns));
        }
        before_wait
    }

    /// For each instance without shown work, the even share of each rank that queued there.
    fn shares_ns(&self, shown: &[Option<i64>]) -> Vec<Vec<i64>> {
        let mut shares_ns = vec![Vec::new(); shown.len()];
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.ranks];
        let mut close = |row: &mut Vec<u32>| {
            let own_ns = row.iter().filter_map(|at| self.arrival(*at as usize).own_ns()).map(|ns| ns.max(0));
            let share_ns = own_ns.fold(0, i64::saturating_add) / row.len().max(1) as i64;
            row.drain(..).for_each(|at| shares_ns[self.nodes[at as usize].instance as usize].push(share_ns));
        };
        for (at, node) in self.nodes.iter().enumerate() {
            let row = &mut rows[node.rank as usize];
            match shown[node.instance as usize].is_none() && self.is_queued(at) {
                true => row.push(at as u32),
                false => close(row),
            }
        }
        rows.iter_mut().for_each(close);
        shares_ns
    }

    /// Finds the work of a typical rank: the lower median of the ranks that do the same work.
    pub(super) fn compare(&mut self, step_of: &[Option<i32>]) {
        let alike = self.alike();
        let since_begin = self.since_begin_of_step(&alike);
        for alike in alike {
            let known = || alike.iter().map(|at| *at as usize).filter(|at| self.arrival(*at).own_ns().is_some());
            let works = known().map(|at| (self.nodes[at].rank as usize, (self.nodes[at].waited, self.nodes[at].work)));
            let works = self.join.same_work.baseline.of(works);
            let mut all_ns: Vec<i64> = works.iter().map(|(_, work)| work.own_ns).collect();
            all_ns.sort_unstable();
            let Some(own_ns) = all_ns.get(all_ns.len().saturating_sub(1) / 2).copied() else { continue };
            let is_shown = all_ns.len() >= LEAST_VARYING;
            let sigma_ns = if is_shown { robust_sigma_of_sorted(&all_ns, own_ns).round() as i64 } else { 0 };
            let waiting: Vec<i64> =
                works.iter().filter(|(waited, _)| *waited != NONE).map(|(_, work)| work.after_ns).collect();
            // If few of them waited, the others tell nothing about the time after a wait.
            let after_ns = (2 * waiting.len() > all_ns.len()).then(|| lower_median(waiting)).flatten();
            for at in known().collect::<Vec<usize>>() {
                let after_ns = after_ns.unwrap_or_else(|| self.nodes[at].work.after_ns.min(own_ns));
                self.nodes[at].typical = Work { own_ns: since_begin[at].unwrap_or(own_ns), after_ns };
                self.nodes[at].sigma_ns = sigma_ns;
            }
        }
        // A cost per step is over the steps that count, so that work outside of them does not change.
        let unknown =
            |at: &usize| self.arrival(*at).own_ns().is_none() || step_of[self.nodes[*at].instance as usize].is_none();
        for at in (0..self.nodes.len()).filter(unknown).collect::<Vec<_>>() {
            self.nodes[at].typical = self.nodes[at].work;
        }
    }

    /// For each node of a rank that sends or receives, the own work of a typical rank since the rank's node before it.
    ///
    /// A rank begins to receive while it computes, each rank at another time, so that ranks divide the same work differently. What
    /// they did since the begin of the step can be compared:
    ///
    /// ```text
    ///   rank 0   |####r####s####s      ######## columns of work before the first send s, wherever the receive r begins
    ///   rank 1   |######r##s####s
    /// ```
    fn since_begin_of_step(&self, alike: &[Vec<u32>]) -> Vec<Option<i64>> {
        let mut has_lane = vec![false; self.ranks];
        for (node, at) in self.nodes.iter().zip(0..) {
            has_lane[node.rank as usize] |= lane(self.instance(at), self.arrival(at)).is_some();
        }
        let mut typical = vec![None; self.nodes.len()];
        if !has_lane.contains(&true) {
            return typical;
        }
        // The node before, in the same step.
        let mut before = vec![NONE; self.nodes.len()];
        let mut since_ns = vec![0_i64; self.nodes.len()];
        let mut last = vec![NONE; self.ranks];
        for (at, node) in self.nodes.iter().enumerate() {
            let last = std::mem::replace(&mut last[node.rank as usize], at as u32);
            if last != NONE && self.instance(last as usize).step == self.instance(at).step {
                before[at] = last;
            }
            let earlier_ns = since_ns.get(before[at] as usize).copied().unwrap_or(0);
            since_ns[at] = earlier_ns.saturating_add(node.work.own_ns);
        }
        let mut typical_ns: Vec<Option<i64>> = vec![None; self.nodes.len()];
        for alike in alike.iter().filter(|alike| alike.len() > 1) {
            let known = alike.iter().map(|at| *at as usize).filter(|at| self.arrival(*at).own_ns().is_some());
            let of_ranks = known.map(|at| (self.nodes[at].rank as usize, since_ns[at]));
            let median_ns = lower_median(self.join.same_work.baseline.of(of_ranks));
            alike.iter().for_each(|at| typical_ns[*at as usize] = median_ns);
        }
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| has_lane[node.rank as usize]) {
            let earlier_ns = typical_ns.get(before[at] as usize).copied().flatten().unwrap_or(0);
            let is_receive = lane(self.instance(at), self.arrival(at)).is_some_and(|(is_sender, _)| !is_sender);
            let own_ns = match typical_ns[at] {
                // No work comes before a receive but at the begin of a step; it is the work before the next node.
                _ if is_receive && before[at] != NONE => 0,
                Some(ns) => (ns - earlier_ns).max(0),
                None => node.work.own_ns,
            };
            typical_ns[at] = Some(earlier_ns.saturating_add(own_ns));
            typical[at] = Some(own_ns);
        }
        typical
    }

    /// The nodes that are compared with each other. Ranks do the same work before a collective in which all have the same
    /// role, and before its [replicas](topology::same_work::Replicas). Before another, those do that share a communicator or
    /// whose communicators are replicas, at the same place of the step.
    pub(super) fn alike(&self) -> Vec<Vec<u32>> {
        let of_stages = |together: &Vec<u32>| {
            let mut stages: FxHashMap<usize, Vec<u32>> = FxHashMap::default();
            for at in together.iter().flat_map(|at| &self.by_instance[*at as usize]) {
                stages.entry(self.join.same_work.stages[self.nodes[*at as usize].rank as usize]).or_default().push(*at);
            }
            stages.into_values()
        };
        // Replicas are symmetric, all or none of them.
        let is_symmetric = |together: &&Vec<u32>| self.join.instances[together[0] as usize].symmetric;
        let mut alike: Vec<Vec<u32>> =
            self.join.same_work.replicas.together.iter().filter(is_symmetric).flat_map(of_stages).collect();
        let places = self.places();
        alike.extend(places.alike.into_iter().filter(|nodes| nodes.len() > 1));
        let mut is_compared = vec![false; self.nodes.len()];
        alike.iter().flatten().for_each(|at| is_compared[*at as usize] = true);
        alike.extend((0..self.nodes.len() as u32).filter(|at| !is_compared[*at as usize]).map(|at| vec![at]));
        alike
    }
}
