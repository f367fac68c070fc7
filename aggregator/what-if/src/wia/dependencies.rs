//! The dependencies of the operations of a step, and the operations that wait for each other.
//!
//! ```text
//!   stage 0   params ─► forward 0 ─► forward 1 ─────────► backward 0 ─► … ─► gc ─► layernorm ─► … ─► clip ─► optimizer
//!                          └► send ┐                  ┌► recv
//!   stage 1                   recv ┴► forward 0 ─► …  └ send
//! ```
//!
//! All steps and data-parallel ranks have the dependencies of rank 0 in the first step. The rules are those of the authors.

use std::collections::{BTreeMap, BTreeSet};

use crate::wia::operations::{First, JobMeta, OpKey, OpType, Operations};

/// Operations of the first and of the last microbatch are told from sends and receives that were recorded but never launched with
/// this tolerance, in seconds.
const EDGE_S: f64 = 5e-5;

/// The dependencies of each operation, by its position among the operations.
#[derive(Debug)]
pub(super) struct Dependencies {
    /// The operations that must end before one starts.
    pub(super) before: Vec<Vec<u32>>,
    /// The operations that start together. Each communicating operation is in one group.
    pub(super) groups: Vec<Vec<u32>>,
    /// For each group, whether it meets over all data-parallel ranks.
    pub(super) meets_over_dp: Vec<bool>,
    /// For each operation, its group.
    pub(super) group_of: Vec<Option<u32>>,
}

impl Dependencies {
    pub(super) fn of(operations: &Operations, meta: &JobMeta) -> Result<Self, String> {
        let mut builder = Builder {
            operations,
            meta,
            before: vec![Vec::new(); operations.keys.len()],
            groups: Vec::new(),
            meets_over_dp: Vec::new(),
        };
        let mut sides: BTreeMap<Side, u32> = BTreeMap::new();
        for stage in 0..operations.pp_size {
            builder.compute_and_p2p(stage, &mut sides)?;
            if builder.uses_dp() {
                builder.params_and_grads(stage);
            }
            builder.after_compute(stage)?;
        }
        builder.pairs(&sides)?;
        builder.collectives()?;
        let mut group_of = vec![None; operations.keys.len()];
        for (group, members) in builder.groups.iter().enumerate() {
            members.iter().for_each(|at| group_of[*at as usize] = Some(group as u32));
        }
        let Builder { before, groups, meets_over_dp, .. } = builder;
        Ok(Self { before, groups, meets_over_dp, group_of })
    }
}

/// A send or receive that was launched: its type, its number among those of its stage, and its stage.
type Side = (OpType, usize, i64);

struct Builder<'a> {
    operations: &'a Operations,
    meta: &'a JobMeta,
    before: Vec<Vec<u32>>,
    groups: Vec<Vec<u32>>,
    meets_over_dp: Vec<bool>,
}

impl Builder<'_> {
    fn uses_dp(&self) -> bool {
        self.meta.dp_size * self.meta.dsp_size > 1
    }

    /// Whether gradients are reduced while the backward pass computes.
    fn overlaps_dp(&self) -> bool {
        self.operations.keys.iter().any(|key| key.optype == OpType::SeparateAllReduce)
    }

    fn key(&self, at: u32) -> OpKey {
        self.operations.keys[at as usize]
    }

    fn first(&self, at: u32) -> First {
        self.operations.first[at as usize]
    }

    fn find(&self, stage: i64, optype: OpType, seq: i64) -> Result<u32, String> {
        let key = OpKey { stage, optype, seq };
        let found = self.operations.position.get(&key).map(|at| *at as u32);
        found.ok_or_else(|| format!("the trace has no {key}, which other operations need"))
    }

    /// The operations of a stage of some types, by start.
    fn ordered(&self, stage: i64, is_wanted: impl Fn(OpType) -> bool) -> Vec<u32> {
        let all = self.operations.keys.iter().enumerate();
        let wanted = all.filter(|(_, key)| key.stage == stage && is_wanted(key.optype));
        let mut found: Vec<u32> = wanted.map(|(at, _)| at as u32).collect();
        found.sort_by(|a, b| {
            let by_start = self.first(*a).start_s.total_cmp(&self.first(*b).start_s);
            by_start.then_with(|| (self.key(*a).seq, self.key(*a).optype).cmp(&(self.key(*b).seq, self.key(*b).optype)))
        });
        found
    }

    fn chain(&mut self, operations: &[u32]) {
        for pair in operations.windows(2) {
            self.before[pair[1] as usize].push(pair[0]);
        }
    }

    fn compute_and_p2p(&mut self, stage: i64, sides: &mut BTreeMap<Side, u32>) -> Result<(), String> {
        let compute = self.ordered(stage, OpType::is_compute);
        self.chain(&compute);
        for optype in [OpType::ForwardSend, OpType::ForwardRecv, OpType::BackwardSend, OpType::BackwardRecv] {
            let transfers = self.ordered(stage, |other| other == optype);
            self.chain(&transfers);
            self.match_compute(stage, optype, &transfers, sides)?;
        }
        // The first backward transfers are posted after the last forward pass but one.
        let first_backward = compute.iter().position(|at| self.key(*at).optype == OpType::BackwardCompute);
        if let Some(forward) = first_backward.and_then(|at| at.checked_sub(2)).map(|at| compute[at]) {
            for optype in [OpType::BackwardRecv, OpType::BackwardSend] {
                if let Ok(transfer) = self.find(stage, optype, 0) {
                    self.before[transfer as usize].push(forward);
                }
            }
        }
        Ok(())
    }

    /// Connects the k-th transfer of a type with the k-th compute operation of its direction, and numbers the transfers that have
    /// another side. The others form groups of their own.
    fn match_compute(
        &mut self,
        stage: i64,
        optype: OpType,
        transfers: &[u32],
        sides: &mut BTreeMap<Side, u32>,
    ) -> Result<(), String> {
        let direction = match optype {
            OpType::ForwardSend | OpType::ForwardRecv => OpType::ForwardCompute,
            _ => OpType::BackwardCompute,
        };
        let receives = matches!(optype, OpType::ForwardRecv | OpType::BackwardRecv);
        let compute = self.ordered(stage, |other| other == direction);
        let last_start_s = compute.iter().map(|at| self.first(*at).start_s).fold(f64::NEG_INFINITY, f64::max);
        let first_end_s = compute.iter().map(|at| self.first(*at).end_s).fold(f64::INFINITY, f64::min);
        // Profilers record sends and receives before the first and after the last pass that are never launched.
        let is_launched = |at: &u32| match receives {
            true => self.first(*at).start_s <= last_start_s + EDGE_S,
            false => self.first(*at).end_s >= first_end_s - EDGE_S,
        };
        let launched: BTreeSet<u32> = transfers.iter().copied().filter(is_launched).collect();
        let count = launched.len();
        let is_edge = stage == 0 || stage + 1 == self.operations.pp_size;
        if count != compute.len() && !(is_edge && (count == 0 || count + 1 == compute.len())) {
            let (name, of) = (optype.name(), direction.name());
            return Err(format!("stage {stage} has {count} {name} for {} {of}", compute.len()));
        }
        let mut seq = i64::from(receives && count > 0 && count + 1 == compute.len());
        let mut number = 0;
        for transfer in transfers {
            if !launched.contains(transfer) {
                self.add_group(vec![*transfer], false);
                continue;
            }
            let matched = self.find(stage, direction, seq)?;
            if receives {
                self.before[matched as usize].push(*transfer);
                if seq > 0 {
                    let previous = self.find(stage, direction, seq - 1)?;
                    self.before[*transfer as usize].push(previous);
                }
            } else {
                self.before[*transfer as usize].push(matched);
            }
            seq += 1;
            if self.has_other_side(optype, self.first(matched).global_chunk) {
                sides.insert((optype, number, stage), *transfer);
                number += 1;
            } else {
                self.add_group(vec![*transfer], false);
            }
        }
        Ok(())
    }

    /// False for the input of the model's first chunk and for the output of its last one.
    fn has_other_side(&self, optype: OpType, global_chunk: i64) -> bool {
        let chunks = self.operations.first.iter().map(|first| first.chunk).max().unwrap_or(0) + 1;
        let peer = match optype {
            OpType::ForwardSend | OpType::BackwardRecv => global_chunk + 1,
            _ => global_chunk - 1,
        };
        (0..chunks * self.operations.pp_size).contains(&peer)
    }

    fn pairs(&mut self, sides: &BTreeMap<Side, u32>) -> Result<(), String> {
        let stages = self.operations.pp_size;
        for ((optype, number, stage), transfer) in sides {
            let (peer, by) = match optype {
                OpType::ForwardSend => (OpType::ForwardRecv, 1),
                OpType::ForwardRecv => (OpType::ForwardSend, -1),
                OpType::BackwardSend => (OpType::BackwardRecv, -1),
                _ => (OpType::BackwardSend, 1),
            };
            let other = sides.get(&(peer, *number, (stage + by).rem_euclid(stages)));
            let other = other.ok_or_else(|| format!("{} has no other side", self.key(*transfer)))?;
            if matches!(optype, OpType::ForwardSend | OpType::BackwardSend) {
                self.add_group(vec![*transfer, *other], false);
            }
        }
        Ok(())
    }

    fn params_and_grads(&mut self, stage: i64) {
        let chain =
            self.ordered(stage, |optype| matches!(optype, OpType::ParamsAllGather | OpType::GradsReduceScatter));
        self.chain(&chain);
        // The last gather of a chunk comes before its first forward pass.
        let mut gathers: BTreeMap<i64, u32> = BTreeMap::new();
        let mut scatters: BTreeMap<i64, u32> = BTreeMap::new();
        for (at, key) in self.operations.keys.iter().enumerate().filter(|(_, key)| key.stage == stage) {
            let chunk = self.operations.first[at].chunk;
            match key.optype {
                OpType::ParamsAllGather => drop(gathers.insert(chunk, at as u32)),
                OpType::GradsReduceScatter => drop(scatters.entry(chunk).or_insert(at as u32)),
                _ => {}
            }
        }
        for (chunk, gather) in gathers {
            let forward = self.ordered(stage, |optype| optype == OpType::ForwardCompute);
            if let Some(first) = forward.into_iter().find(|at| self.first(*at).chunk == chunk) {
                self.before[first as usize].push(gather);
            }
        }
        if !self.overlaps_dp() {
            return;
        }
        for (chunk, scatter) in scatters {
            let backward = self.ordered(stage, |optype| optype == OpType::BackwardCompute).into_iter();
            let of_chunk = backward.filter(|at| self.first(*at).chunk == chunk);
            if let Some(last) = of_chunk.max_by(|a, b| self.first(*a).end_s.total_cmp(&self.first(*b).end_s)) {
                self.before[scatter as usize].push(last);
            }
        }
    }

    /// The chain from the last pass to the optimizer.
    fn after_compute(&mut self, stage: i64) -> Result<(), String> {
        let compute = self.ordered(stage, OpType::is_compute);
        let last = compute.into_iter().max_by(|a, b| self.first(*a).end_s.total_cmp(&self.first(*b).end_s));
        let last = last.ok_or_else(|| format!("stage {stage} computes nothing"))?;
        let gc = self.find(stage, OpType::Gc, 0)?;
        self.before[gc as usize].push(last);
        let mut scatters = self.ordered(stage, |optype| optype == OpType::GradsReduceScatter);
        scatters.sort_by_key(|at| self.key(*at).seq);
        let mut chain = vec![gc, self.find(stage, OpType::LayernormAllReduce, 0)?];
        if stage == 0 || stage + 1 == self.operations.pp_size {
            chain.push(self.find(stage, OpType::EmbeddingAllReduce, 0)?);
        }
        if self.uses_dp() && self.overlaps_dp() {
            if let Some(last) = scatters.last() {
                self.before[chain[1] as usize].push(*last);
            }
            chain.push(self.find(stage, OpType::SeparateAllReduce, 0)?);
        } else if self.uses_dp() {
            chain.extend(scatters);
        }
        chain.push(self.find(stage, OpType::ClipMainGrad, 0)?);
        chain.push(self.find(stage, OpType::Optimizer, 0)?);
        self.chain(&chain);
        Ok(())
    }

    fn add_group(&mut self, members: Vec<u32>, meets_over_dp: bool) {
        self.groups.push(members);
        self.meets_over_dp.push(meets_over_dp);
    }

    /// Collectives over data-parallel ranks, of the embedding (first and last stage), and before the optimizer (all stages).
    fn collectives(&mut self) -> Result<(), String> {
        if self.uses_dp() {
            let is_dp = |optype: OpType| {
                matches!(optype, OpType::ParamsAllGather | OpType::GradsReduceScatter | OpType::SeparateAllReduce)
            };
            let all = self.operations.keys.iter().enumerate();
            let found: Vec<u32> = all.filter(|(_, key)| is_dp(key.optype)).map(|(at, _)| at as u32).collect();
            found.into_iter().for_each(|at| self.add_group(vec![at], true));
        }
        let last = self.operations.pp_size - 1;
        let ends: BTreeSet<i64> = [0, last].into();
        let of_stages = |stages: &mut dyn Iterator<Item = i64>, optype: OpType| -> Result<Vec<u32>, String> {
            stages.map(|stage| self.find(stage, optype, 0)).collect()
        };
        let embedding = of_stages(&mut ends.into_iter(), OpType::EmbeddingAllReduce)?;
        let clip = of_stages(&mut (0..=last), OpType::ClipMainGrad)?;
        self.add_group(embedding, false);
        self.add_group(clip, true);
        Ok(())
    }
}
