//! The memory that the shards of a rank take while they are read.

use crate::Shard;
use crate::run::Run;

impl Run {
    /// Leaves out the largest shards of each rank until the others take at most `limit_bytes` of memory. Each shard that
    /// is left out becomes a problem with the reason that `why` gives for its bytes of memory.
    pub fn keep_within(&mut self, limit_bytes: u64, why: impl Fn(u64) -> String) {
        for rank in self.ranks() {
            let mut by_size: Vec<&Shard> = self.of_rank(rank).flat_map(|(_, shards)| shards).collect();
            by_size.sort_by_key(|shard| (shard.memory_bytes, shard.part));
            let mut sum = 0_u64;
            let fits = |shard: &&&Shard| {
                sum = sum.saturating_add(shard.memory_bytes);
                sum <= limit_bytes
            };
            let kept = by_size.iter().take_while(fits).count();
            let large: Vec<Shard> = by_size[kept..].iter().copied().cloned().collect();
            for shard in large {
                if let Some(shards) = self.shards.get_mut(&(rank, shard.table.clone())) {
                    shards.retain(|other| other.part != shard.part);
                }
                let why = why(shard.memory_bytes);
                let what = format!("rows of {}", shard.table);
                self.problem(&shard.path, Some(rank), what, i64::try_from(shard.rows).ok(), why);
            }
        }
        self.shards.retain(|_, shards| !shards.is_empty());
    }
}
