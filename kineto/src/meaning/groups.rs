//! Process groups: the ranks of a collective, and an id that all ranks compute alike.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};
use trace::rank::MAX_RANKS;
use trace::{CommOrigin, CommRow, Text, fnv_1a};

use crate::bytes::value::Value;
use crate::columns::header::world_size_from_distributed_info;
/// The arguments of a collective that name its group.
const NAMING: [&str; 6] = [
    "Process Group Name",
    "Process Group ID",
    "Group size",
    "Process Group Ranks",
    "Global rank start",
    "Global rank stride",
];

/// The most ranks that the groups of a trace have together, beside those that the collectives list themselves: 16 groups
/// of the largest job. A few bytes claim as many ranks, so that only a limit bounds time and memory.
pub(crate) const MAX_UNLISTED_RANKS: usize = 16 * MAX_RANKS as usize;

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) comm_id: i64,
    pub(crate) name: Option<Text>,
    pub(crate) size: Option<i32>,
    pub(crate) ranks: Option<Vec<i32>>,
    description: Option<Text>,
}

/// The arguments that may name a group.
type Naming = [Option<Value>; NAMING.len()];

/// The groups of a rank.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// From `pg_config`, by name.
    configured: BTreeMap<String, Group>,
    /// Names of the groups that carry sends and receives, most likely first.
    of_pairs: Vec<(Pairs, String)>,
    world_size: Option<i32>,
    /// This is added to the ranks that the trace names: its replica's first rank in the job.
    first_rank: i32,
    /// Every group that a collective used.
    used: BTreeMap<i64, (Arc<Group>, CommOrigin)>,
    /// The groups that arguments named before, by a hash of the arguments. A list of ranks may be long, and every
    /// collective repeats it.
    named: FxHashMap<u64, (Naming, Option<Arc<Group>>)>,
    /// Ranks that count for [`MAX_UNLISTED_RANKS`].
    unlisted_ranks: usize,
    /// Whether a collective named no group although there are several.
    lacks_names: bool,
    /// Times that a group was left without its ranks, because there would be more than [`MAX_UNLISTED_RANKS`].
    pub(crate) without_ranks: i64,
}

impl Groups {
    /// Reads `distributedInfo`. `first_rank` is added to the ranks that the trace names.
    pub(crate) fn from_info(info: Option<&Value>, first_rank: i32) -> Self {
        let mut groups = Self { first_rank, ..Self::default() };
        let Some(info) = info else { return groups };
        groups.world_size = world_size_from_distributed_info(Some(info));
        for config in info.get("pg_config").map(Value::items).unwrap_or_default() {
            let Some(name) = config.get("pg_name").and_then(Value::text) else { continue };
            let ranks = config.get("ranks").and_then(|ranks| groups.ranks_of(ranks));
            let size = config.get("pg_size").and_then(Value::integer).and_then(|n| i32::try_from(n).ok());
            let size = size.or(ranks.as_ref().map(|r| r.len() as i32));
            let description = config.get("pg_desc").and_then(Value::text).filter(|text| !text.is_empty());
            let group = Group { description: description.map(Text::from), ..groups.group(Some(name), size, ranks) };
            groups.configured.insert(name.to_string(), group);
            groups.of_pairs.push((likely_pairs(description.unwrap_or_default()), name.to_string()));
        }
        groups.of_pairs.sort();
        groups
    }

    /// The group that the arguments of a collective name; `None` if they name none.
    pub(crate) fn named(&mut self, args: &Value) -> Option<Arc<Group>> {
        let naming = NAMING.map(|key| args.get(key));
        let hash = FxBuildHasher.hash_one(naming);
        if let Some((known, group)) = self.named.get(&hash)
            && known.each_ref().map(Option::as_ref) == naming
        {
            let group = group.clone();
            return group.map(|group| self.using(group, CommOrigin::Stated));
        }
        let group = self.read(args).map(|group| self.using(Arc::new(group), CommOrigin::Stated));
        self.named.insert(hash, (naming.map(Option::<&Value>::cloned), group.clone()));
        group
    }

    fn read(&mut self, args: &Value) -> Option<Group> {
        let name = args.get("Process Group Name").or_else(|| args.get("Process Group ID")).and_then(Value::text);
        let size = args.get("Group size").and_then(Value::integer).and_then(|n| i32::try_from(n).ok());
        let listed =
            args.get("Process Group Ranks").and_then(|ranks| self.ranks_of(ranks)).filter(|ranks| !ranks.is_empty());
        if name.is_none() && listed.is_none() {
            return None;
        }
        let configured = name.and_then(|name| self.configured.get(name));
        let progression = if listed.is_none() { Progression::of(args, size, self.first_rank) } else { None };
        let configured_ranks = configured.and_then(|group| group.ranks.as_deref());
        let unlisted = match (&listed, &progression, configured_ranks) {
            (Some(_), ..) => 0,
            (None, Some(progression), _) => progression.size as usize,
            (None, None, ranks) => ranks.map_or(0, <[i32]>::len),
        };
        if unlisted > MAX_UNLISTED_RANKS - self.unlisted_ranks {
            self.without_ranks += 1;
            return Some(self.group(name, size.or(i32::try_from(unlisted).ok()), None));
        }
        self.unlisted_ranks += unlisted;
        let unlisted = || progression.map_or_else(|| configured_ranks.map(<[i32]>::to_vec), |p| Some(p.ranks()));
        let ranks = listed.or_else(unlisted);
        let size = size.or(ranks.as_ref().map(|r| r.len() as i32)).or_else(|| configured?.size);
        let description = configured.and_then(|group| group.description.clone());
        Some(Group { description, ..self.group(name, size, ranks) })
    }

    /// The group with a name that a dump beside the trace has.
    pub(crate) fn of_dump(&mut self, name: &str) -> Arc<Group> {
        self.of_name(name, CommOrigin::FlightRecorder)
    }

    fn of_name(&mut self, name: &str, origin: CommOrigin) -> Arc<Group> {
        let group = self.configured.get(name).cloned().unwrap_or_else(|| self.group(Some(name), None, None));
        self.using(Arc::new(group), origin)
    }

    /// The group of a send or receive of `rank`, and the rank at its other side, by that side's number in the group. Several
    /// groups may have the number: a pipeline's sends come before those of the whole job. `None` if no other decides.
    pub(crate) fn of_peer(&mut self, rank: i32, number: i64) -> Option<(Arc<Group>, i32)> {
        let number = usize::try_from(number).ok()?;
        let peer_in = |(likely, name): &(Pairs, String)| {
            let ranks = self.configured.get(name)?.ranks.as_deref()?;
            let peer = *ranks.get(number).filter(|peer| **peer != rank && ranks.contains(&rank))?;
            Some((*likely, name.clone(), peer))
        };
        let mut fitting = self.of_pairs.iter().filter_map(peer_in);
        let (likely, name, peer) = fitting.next()?;
        let is_clear = fitting.next().is_none_or(|(next, ..)| next > likely);
        is_clear.then(|| (self.of_name(&name, CommOrigin::Inferred), peer))
    }

    /// The group of a collective that names none: the only configured group; or the world, if one stream carries all
    /// collectives; else a group for the stream, of unknown size.
    pub(crate) fn unnamed(&mut self, stream: Option<i64>, only_stream: bool) -> Arc<Group> {
        self.lacks_names |= self.configured.len() > 1;
        let mut configured = self.configured.values();
        let group = match (configured.next(), configured.next()) {
            (Some(only), None) => only.clone(),
            _ if only_stream => self.group(None, self.world_size, None),
            _ => self.group(stream.map(|s| format!("stream {s}")).as_deref(), None, None),
        };
        self.using(Arc::new(group), CommOrigin::Inferred)
    }

    fn group(&self, name: Option<&str>, size: Option<i32>, ranks: Option<Vec<i32>>) -> Group {
        let comm_id = comm_id(name, ranks.as_deref(), size, self.first_rank);
        Group { comm_id, name: name.map(Text::from), size, ranks, description: None }
    }

    fn ranks_of(&self, value: &Value) -> Option<Vec<i32>> {
        value.integers()?.into_iter().map(|rank| self.in_job(i32::try_from(rank).ok()?)).collect()
    }

    /// The number in the job of a rank that the trace names.
    pub(crate) fn in_job(&self, rank: i32) -> Option<i32> {
        rank.checked_add(self.first_rank)
    }

    /// Of several origins of its collectives, a group has the least certain one.
    fn using(&mut self, group: Arc<Group>, origin: CommOrigin) -> Arc<Group> {
        let (_, known) = self.used.entry(group.comm_id).or_insert_with(|| (Arc::clone(&group), origin));
        *known = origin.max(*known);
        group
    }

    /// The rows of `comms`: the groups of collectives, and all whose ranks the trace lists if collectives name none.
    pub(crate) fn rows(&self, rank: i32) -> Vec<CommRow> {
        let row = |group: &Group, origin: Option<CommOrigin>| CommRow {
            rank,
            comm_id: group.comm_id,
            name: group.name.clone(),
            description: group.description.clone(),
            origin: origin.map(Into::into),
            size: group.size,
            ranks: group.ranks.clone(),
            comm_rank: None,
            nodes: None,
            created_ns: None,
            destroyed_ns: None,
        };
        let is_candidate =
            |group: &&Group| self.lacks_names && group.ranks.is_some() && !self.used.contains_key(&group.comm_id);
        let unused = self.configured.values().filter(is_candidate);
        let used = self.used.values().map(|(group, origin)| row(group, Some(*origin)));
        used.chain(unused.map(|group| row(group, None))).collect()
    }
}

/// How likely a group carries sends and receives, by its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pairs {
    /// The stages of a pipeline.
    Pipeline,
    /// All ranks, the group of a call that names none.
    Default,
    Other,
}

/// Descriptions are `mesh_pp` (torch's meshes), `PIPELINE_MODEL_PARALLEL_GROUP` (Megatron) and `default_pg` (torch).
fn likely_pairs(description: &str) -> Pairs {
    let description = description.to_ascii_lowercase();
    if description.contains("pipeline")
        || description.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "pp")
    {
        Pairs::Pipeline
    } else if description == "default_pg" {
        Pairs::Default
    } else {
        Pairs::Other
    }
}

/// Ranks by start, stride and size, for traces that cut the list short.
struct Progression {
    start: i32,
    stride: i32,
    size: i32,
}

impl Progression {
    /// The ranks that arguments name in this way; `None` if they do not, or if some are no numbers of ranks.
    fn of(args: &Value, size: Option<i32>, first_rank: i32) -> Option<Self> {
        let start = i32::try_from(args.get("Global rank start")?.integer()?).ok()?.checked_add(first_rank)?;
        let stride = i32::try_from(args.get("Global rank stride")?.integer()?).ok()?;
        let size = size.filter(|n| (1..=MAX_RANKS).contains(n))?;
        start.checked_add(stride.checked_mul(size - 1)?)?;
        Some(Self { start, stride, size })
    }

    fn ranks(&self) -> Vec<i32> {
        (0..self.size).map(|i| self.start + self.stride * i).collect()
    }
}

/// An id that every rank of a group computes alike, of its name and ranks. Where the ranks are unknown, its size and the first
/// rank of the replica tell it from the groups of other replicas.
fn comm_id(name: Option<&str>, ranks: Option<&[i32]>, size: Option<i32>, first_rank: i32) -> i64 {
    let unlisted = [size.unwrap_or(0), first_rank];
    let unlisted = &unlisted[..1 + usize::from(first_rank != 0)];
    let numbers = ranks.unwrap_or(unlisted).iter().flat_map(|number| number.to_le_bytes());
    fnv_1a(name.unwrap_or("\u{0}").bytes().chain([0]).chain(numbers)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        Value::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn ranks_come_from_the_list_the_stride_or_the_configuration() {
        let info = value(
            r#"{"world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 4, "ranks": [0, 2, 4, 6]},
            {"pg_name": "1", "pg_size": 2, "ranks": "[0, 1]"}]}"#,
        );
        let mut groups = Groups::from_info(Some(&info), 0);
        let mut named = |text: &str| groups.named(&value(text));
        let listed =
            named(r#"{"Process Group Name": "0", "Process Group Ranks": "[0, 2, 4, 6]", "Group size": 4}"#).unwrap();
        let cut = named(
            r#"{"Process Group Name": "0", "Process Group Ranks": "[0, 2, ...]", "Group size": 4, "Global rank start": 0, "Global rank stride": 2}"#,
        );
        let configured = named(r#"{"Process Group Name": "0"}"#);
        assert_eq!(listed.ranks, Some(vec![0, 2, 4, 6]));
        assert_eq!(cut.unwrap(), listed);
        assert_eq!(configured.unwrap(), listed);
        assert_eq!(named(r#"{"Process Group Name": "1"}"#).unwrap().ranks, Some(vec![0, 1]));
        assert_eq!(named(r#"{"dtype": "Float"}"#), None);
        assert_eq!(groups.rows(3).len(), 2);
    }

    /// Without the limit, the groups would have 2 000 million ranks.
    #[test]
    fn a_few_bytes_do_not_make_a_long_list_of_ranks() {
        const LARGE: usize = MAX_UNLISTED_RANKS / MAX_RANKS as usize;
        let mut groups = Groups::default();
        let mut named = |name: usize| {
            let text = format!(
                r#"{{"Process Group Name": "{name}", "Group size": {MAX_RANKS}, "Global rank start": 0, "Global rank stride": 1}}"#
            );
            groups.named(&value(&text)).unwrap()
        };
        let ranks: Vec<usize> = (0..2_000).map(|name| named(name).ranks.as_ref().map_or(0, Vec::len)).collect();
        assert_eq!(named(1_999).size, Some(MAX_RANKS));
        assert!(ranks[..LARGE].iter().all(|ranks| *ranks == MAX_RANKS as usize));
        assert!(ranks[LARGE..].iter().all(|ranks| *ranks == 0));
        assert_eq!(groups.without_ranks, 2_000 - LARGE as i64);
    }

    #[test]
    fn groups_without_a_name_are_the_world_or_a_stream() {
        let mut groups = Groups::from_info(Some(&value(r#"{"world_size": 4}"#)), 0);
        let world = groups.unnamed(Some(20), true);
        assert_eq!((world.size, world.name.clone()), (Some(4), None));
        let stream = groups.unnamed(Some(20), false);
        assert_eq!((stream.size, stream.name.as_deref()), (None, Some("stream 20")));
        assert_ne!(stream.comm_id, groups.unnamed(Some(21), false).comm_id);
        let info = value(r#"{"world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 8, "ranks": [0, 1]}]}"#);
        assert_eq!(Groups::from_info(Some(&info), 0).unnamed(None, true).name.as_deref(), Some("0"));
    }

    /// Rank 5 of a pipeline of two stages: group 2 has its two stages, 8 its replicas, 11 its tensor peers.
    #[test]
    fn a_send_goes_through_the_pipeline_or_the_group_of_all() {
        let info = value(
            r#"{"world_size": 8, "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": [0, 1, 2, 3, 4, 5, 6, 7]},
            {"pg_name": "2", "pg_desc": "mesh_pp", "pg_size": 2, "ranks": [1, 5]},
            {"pg_name": "8", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [5, 7]},
            {"pg_name": "11", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [4, 5]}]}"#,
        );
        let mut groups = Groups::from_info(Some(&info), 0);
        let mut peer = |number: i64| groups.of_peer(5, number).map(|(group, rank)| (group.name.clone().unwrap(), rank));
        assert_eq!(peer(0), Some(("2".into(), 1)));
        assert_eq!(peer(1), Some(("0".into(), 1)), "itself in the pipeline");
        assert_eq!((peer(6), peer(9), peer(-1)), (Some(("0".into(), 6)), None, None));
        let two = value(r#"{"pg_config": [{"pg_name": "a", "ranks": [0, 1]}, {"pg_name": "b", "ranks": [2, 1]}]}"#);
        assert_eq!(Groups::from_info(Some(&two), 0).of_peer(1, 0), None, "two groups fit equally well");
    }

    #[test]
    fn groups_of_replicas_differ_in_their_ranks() {
        let info = value(r#"{"world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}"#);
        let groups = [0, 2].map(|first_rank| Groups::from_info(Some(&info), first_rank));
        let [(first, first_world), (second, second_world)] = groups.map(|mut groups| {
            let list =
                r#"{"Process Group Name": "1", "Group size": 2, "Global rank start": 0, "Global rank stride": 1}"#;
            assert_eq!(groups.named(&value(list)).unwrap().ranks, groups.of_dump("0").ranks);
            (groups.of_dump("0"), groups.of_dump("without ranks"))
        });
        assert_eq!((first.ranks.clone(), second.ranks.clone()), (Some(vec![0, 1]), Some(vec![2, 3])));
        assert!(first.comm_id != second.comm_id && first_world.comm_id != second_world.comm_id);
    }
}
