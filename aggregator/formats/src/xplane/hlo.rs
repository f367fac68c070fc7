//! What the text of an HLO instruction says: its opcode, its collective, the ranks in it, and its size.
//!
//! ```text
//!  %all-reduce.3 = f32[5,1024]{1,0:T(8,128)} all-reduce(f32[5,1024] %x), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add
//!                  type                      opcode                                    rows of iota(8) as 2 × 4, transposed, as 4 × 2
//!  %all-gather-done = bf16[64]{0} all-gather-done((bf16[8], bf16[64]) %all-gather-start), replica_groups={{0,1},{2,3}}
//! ```
//!
//! Many profiles have names only, such as `all-reduce.3`. Then the name up to its first point is taken for the opcode.

use trace::name_rules::hlo_collective;

/// Members of all groups of a collective.
const MAX_MEMBERS: usize = 1 << 20;
/// Axes of an array of members.
const MAX_AXES: usize = 16;

/// The part of an asynchronous collective that an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Start,
    Done,
}

/// A collective instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collective {
    /// As in `collectives.op`.
    pub(super) op: &'static str,
    pub(super) part: Part,
    /// The name of the instruction that began it, if this one waits for it and its text says so.
    pub(super) begun_by: Option<String>,
    /// `None` if the text has no groups.
    pub(super) groups: Option<Groups>,
    /// Element type and bytes of the result.
    pub(super) dtype: Option<&'static str>,
    pub(super) bytes: Option<i64>,
}

/// The groups of a collective, by the numbers that the program gives its devices. An array is not written out: its text may be much shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Groups {
    /// One group of all.
    All,
    Listed(Vec<Vec<i32>>),
    /// `count` groups of `size`: the numbers from 0 in an array of this shape, with its axes in this order.
    Array {
        count: usize,
        size: usize,
        shape: Vec<usize>,
        order: Vec<usize>,
    },
}

/// The group that a device is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// All ranks are in it. It may have more of other files: then this is their number.
    All(Option<usize>),
    Members(Vec<i32>),
    /// There are several, and the devices here are not all of the program.
    Unknown,
}

impl Groups {
    /// The number of members of a group, if all have as many.
    fn size(&self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Listed(groups) => {
                let size = groups.first()?.len();
                groups.iter().all(|group| group.len() == size).then_some(size)
            }
            Self::Array { size, .. } => Some(*size),
        }
    }

    /// The group of a device in a job of `ranks` devices, whose numbers are those of the ranks.
    pub(super) fn group_of(&self, rank: i32, ranks: usize) -> Group {
        let (count, total) = match self {
            Self::All => return Group::All(None),
            Self::Listed(groups) => (groups.len(), groups.iter().map(Vec::len).sum()),
            Self::Array { count, size, .. } => (*count, count * size),
        };
        match (count, total) {
            (1, _) if total >= ranks => Group::All(Some(total)),
            _ if total != ranks => Group::Unknown,
            _ => self.members_with(rank).map_or(Group::Unknown, Group::Members),
        }
    }

    fn members_with(&self, rank: i32) -> Option<Vec<i32>> {
        match self {
            Self::All => None,
            Self::Listed(groups) => groups.iter().find(|group| group.contains(&rank)).cloned(),
            Self::Array { count, size, shape, order } => {
                // How far apart neighbours along each axis are before the transposition.
                let strides: Vec<usize> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
                let member = |mut place: usize| {
                    let mut number = 0;
                    for axis in order.iter().rev() {
                        number += place % shape[*axis] * strides[*axis];
                        place /= shape[*axis];
                    }
                    number as i32
                };
                let place = (0..count * size).find(|place| member(*place) == rank)?;
                let first = place / size * size;
                Some((first..first + size).map(member).collect())
            }
        }
    }
}

/// What an instruction is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// It calls other instructions, which have times of their own.
    Control,
    /// It copies, or waits for a copy.
    Copy,
    Collective(Collective),
    Compute,
}

/// Understands an instruction by its text or its name, or else by the category that the profiler gives it.
pub(super) fn instruction(text: &str, name: &str, category: &str) -> Instruction {
    let parsed = parse(text);
    let opcode = parsed.as_ref().map_or_else(|| stem(name), |parsed| parsed.opcode);
    // A fusion or an asynchronous call has the name of what it wraps.
    let wraps = matches!(opcode, "fusion" | "async-start" | "async-update" | "async-done" | "custom-call");
    let opcode = if wraps { stem(parsed.as_ref().map_or(name, |parsed| parsed.name)) } else { opcode };
    let (base, part) = match opcode {
        _ if opcode.ends_with("-start") => (opcode.trim_end_matches("-start"), Part::Start),
        _ if opcode.ends_with("-done") => (opcode.trim_end_matches("-done"), Part::Done),
        // These two end with `send-done` and `recv-done`.
        "send" | "recv" => (opcode, Part::Start),
        _ => (opcode, Part::Whole),
    };
    if let Some(op) = hlo_collective(base).or_else(|| hlo_collective(category)) {
        return Instruction::Collective(collective(op, part, parsed.as_ref()));
    }
    match base {
        "while" | "conditional" | "call" => Instruction::Control,
        "copy" | "slice" | "dynamic-slice" | "dynamic-update-slice" if part != Part::Whole => Instruction::Copy,
        "infeed" | "outfeed" => Instruction::Copy,
        _ => Instruction::Compute,
    }
}

/// A name without its number: `all-reduce` of `%all-reduce.3`.
fn stem(name: &str) -> &str {
    let name = name.strip_prefix('%').unwrap_or(name);
    name.split('.').next().unwrap_or(name)
}

/// The name of an instruction in its text: `all-reduce.3` of `%all-reduce.3 = …`.
pub(super) fn name_in(text: &str) -> &str {
    let name = text.split_once(" = ").map_or(text, |(name, _)| name);
    name.strip_prefix('%').unwrap_or(name)
}

struct Parsed<'a> {
    name: &'a str,
    of_type: &'a str,
    opcode: &'a str,
    /// Operands and attributes.
    rest: &'a str,
}

fn parse(text: &str) -> Option<Parsed<'_>> {
    let (name, rest) = text.split_once(" = ")?;
    let end = if rest.starts_with('(') { closing(rest)? + 1 } else { rest.find(' ')? };
    let (of_type, rest) = rest.split_at(end);
    let (opcode, rest) = rest.trim_start().split_once('(')?;
    let is_opcode = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (!opcode.is_empty() && opcode.bytes().all(is_opcode)).then_some(Parsed { name, of_type, opcode, rest })
}

/// Where the first parenthesis closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

fn collective(op: &'static str, part: Part, parsed: Option<&Parsed<'_>>) -> Collective {
    let mut found = Collective { op, part, begun_by: None, groups: None, dtype: None, bytes: None };
    let Some(parsed) = parsed else { return found };
    found.groups = groups(parsed.rest);
    let arrays = arrays(parsed.of_type);
    found.dtype = arrays.iter().flatten().map(|(dtype, _)| *dtype).find(|dtype| *dtype != "u32");
    let mut sizes = arrays.iter().map(|array| array.map(|(_, bytes)| bytes));
    found.bytes = match part {
        // The type of a start lists operand, result and flags.
        Part::Start => sizes.flatten().max(),
        Part::Whole | Part::Done => sizes.try_fold(0_i64, |sum, bytes| sum.checked_add(bytes?)),
    };
    if part == Part::Done {
        let operand = parsed.rest.split(')').filter_map(|text| text.rsplit_once('%')).map(|(_, name)| name).next();
        found.begun_by = operand.map(String::from);
    }
    if op == "reducescatter" && part != Part::Start {
        // The result is the rank's part of the array.
        let parts = found.groups.as_ref().and_then(Groups::size).map(|size| size as i64);
        found.bytes = found.bytes.zip(parts).and_then(|(bytes, parts)| bytes.checked_mul(parts));
    }
    found
}

/// Element type and bytes of each array in a type; `None` for an unknown one.
fn arrays(of_type: &str) -> Vec<Option<(&'static str, i64)>> {
    let mut found = Vec::new();
    let mut rest = of_type;
    while let Some((before, after)) = rest.split_once('[') {
        let dtype = before.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        let Some((sides, after)) = after.split_once(']') else { break };
        found.push(array(dtype, sides));
        rest = after;
    }
    found
}

fn array(dtype: &str, sides: &str) -> Option<(&'static str, i64)> {
    let (dtype, size) = match dtype {
        "f32" => ("f32", 4),
        "f16" => ("f16", 2),
        "bf16" => ("bf16", 2),
        "f64" => ("f64", 8),
        "f8e4m3fn" | "f8e4m3" => ("f8e4m3", 1),
        "f8e5m2" => ("f8e5m2", 1),
        "s8" => ("i8", 1),
        "u8" => ("u8", 1),
        "s16" => ("i16", 2),
        "s32" => ("i32", 4),
        "u32" => ("u32", 4),
        "s64" => ("i64", 8),
        "u64" => ("u64", 8),
        "pred" => ("bool", 1),
        _ => return None,
    };
    let mut bytes: i64 = size;
    // `f32[]` is one number, and `f32[<=8]` has at most 8.
    for side in sides.split(',').filter(|side| !side.is_empty()) {
        let side: i64 = side.trim_start_matches("<=").parse().ok().filter(|side| *side >= 0)?;
        bytes = bytes.checked_mul(side)?;
    }
    Some((dtype, bytes))
}

/// The groups of an instruction's attributes.
fn groups(attributes: &str) -> Option<Groups> {
    let (_, rest) = attributes.split_once("replica_groups=")?;
    if rest.starts_with('{') { listed(rest) } else { of_array(rest) }
}

/// `{{0,1},{2,3}}`, or `{}` for one group of all.
fn listed(text: &str) -> Option<Groups> {
    let text = text.strip_prefix('{')?;
    if text.starts_with('}') {
        return Some(Groups::All);
    }
    let inner = text.split_once("}}").map(|(inner, _)| inner)?.strip_prefix('{')?;
    let mut left = MAX_MEMBERS;
    let mut groups = Vec::new();
    for group in inner.split("},{") {
        let group: Vec<i32> = group.split(',').take(left).map(|id| id.parse().ok()).collect::<Option<_>>()?;
        left = left.checked_sub(group.len()).filter(|left| *left > 0)?;
        groups.push(group);
    }
    Some(Groups::Listed(groups))
}

/// `[4,2]<=[2,4]T(1,0)`: four groups of two, of the numbers from 0 in an array of 2 × 4 that is transposed.
fn of_array(text: &str) -> Option<Groups> {
    let (groups, rest) = sides(text)?;
    let (shape, rest) = sides(rest.strip_prefix("<=")?)?;
    let order = match rest.strip_prefix("T(") {
        None => (0..shape.len()).collect(),
        Some(order) => {
            let order = order.split_once(')')?.0.split(',');
            order.map(|axis| axis.parse().ok()).collect::<Option<Vec<usize>>>()?
        }
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    let [count, size] = groups[..] else { return None };
    let total = product(&shape)?;
    if sorted.into_iter().ne(0..shape.len()) || count.checked_mul(size)? != total || total == 0 {
        return None;
    }
    Some(Groups::Array { count, size, shape, order })
}

/// The numbers in brackets, and what follows.
fn sides(text: &str) -> Option<(Vec<usize>, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let sides: Option<Vec<usize>> = inside.split(',').take(MAX_AXES + 1).map(|side| side.parse().ok()).collect();
    sides.filter(|sides| sides.len() <= MAX_AXES).map(|sides| (sides, rest))
}

/// The number of members, if it is possible.
fn product(sides: &[usize]) -> Option<usize> {
    let all = sides.iter().try_fold(1_usize, |all, side| all.checked_mul(*side))?;
    (1..=MAX_MEMBERS).contains(&all).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Collective {
        match instruction(text, "unused", "") {
            Instruction::Collective(found) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_text_of_a_collective_says_its_group_and_size() {
        let all_reduce = found(
            "%all-reduce = f32[5,1024]{1,0:T(8,128)} all-reduce(f32[5,1024]{1,0:T(8,128)} %bitcast), channel_id=1, \
             replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%add",
        );
        assert_eq!((all_reduce.op, all_reduce.part), ("allreduce", Part::Whole));
        assert_eq!((all_reduce.dtype, all_reduce.bytes), (Some("f32"), Some(20_480)));
        let groups = all_reduce.groups.unwrap();
        assert_eq!(groups.group_of(5, 8), Group::Members(vec![1, 5]));
        assert_eq!(groups.group_of(5, 4), Group::Unknown, "half of the devices are elsewhere");
        let start = found("%ag = (bf16[8]{0}, bf16[64]{0}) all-gather-start(bf16[8] %x), replica_groups={{0,1},{2,3}}");
        assert_eq!((start.op, start.part, start.bytes), ("allgather", Part::Start, Some(128)));
        assert_eq!(start.groups.unwrap().group_of(2, 4), Group::Members(vec![2, 3]));
        // A letter of several bytes, and a shape whose parts overflow although it is empty.
        assert_eq!(found("%a = é[2] all-reduce(f32[2] %x)").bytes, None);
        let empty = "replica_groups=[0,1]<=[0,4294967296,4294967296,4294967296]";
        assert!(found(&format!("%a = f32[2] all-reduce(f32[2] %x), {empty}")).groups.is_none());
        let done = found("%ag.1 = bf16[64]{0} all-gather-done((bf16[8]{0}, bf16[64]{0}) %ag)");
        assert_eq!((done.part, done.begun_by.as_deref(), done.groups), (Part::Done, Some("ag"), None));
        let part = found("%rs = f32[4] reduce-scatter(f32[8] %x), replica_groups={{0,1}}, dimensions={0}");
        assert_eq!((part.op, part.bytes), ("reducescatter", Some(32)));
        let fused = found("%all-reduce-scatter.7 = f32[4] fusion(f32[8] %x), kind=kCustom, calls=%all-reduce-scatter");
        assert_eq!((fused.op, fused.groups), ("reducescatter", None));
        assert_eq!(found("%r = (f32[], s32[2]) all-reduce(%a, %b), replica_groups={}").groups, Some(Groups::All));
    }

    #[test]
    fn names_alone_are_understood() {
        let of = |name: &str| instruction(name, name, "");
        let collective = |name: &str| match of(name) {
            Instruction::Collective(Collective { op, part, .. }) => Some((op, part)),
            _ => None,
        };
        assert_eq!(collective("all-reduce.12"), Some(("allreduce", Part::Whole)));
        assert_eq!(collective("all-to-all-start.1"), Some(("alltoall", Part::Start)));
        assert_eq!(collective("collective-permute-done"), Some(("sendrecv", Part::Done)));
        assert_eq!(collective("send-done.2"), Some(("send", Part::Done)));
        assert_eq!(collective("reduce.3"), None);
        assert_eq!(collective("all_reduce_fusion"), None);
        assert_eq!((of("while.4"), of("copy-done.2")), (Instruction::Control, Instruction::Copy));
        assert_eq!((of("copy.1"), of("fusion")), (Instruction::Compute, Instruction::Compute));
        let while_loop =
            "%while.4 = (s32[], /*index=1*/f32[4]{0}) while((s32[], f32[4]) %tuple), condition=%c, body=%b";
        assert_eq!(instruction(while_loop, "x", "while"), Instruction::Control);
        let renamed = instruction("", "gradients.3", "all-reduce");
        assert!(matches!(renamed, Instruction::Collective(Collective { op: "allreduce", .. })), "{renamed:?}");
    }

    #[test]
    fn impossible_groups_are_none() {
        for text in
            ["[4,2]<=[9]", "[0,0]<=[0]", "[2]<=[2]", "[1,2]<=[2]T(1)", "[1,2]<=[2]T(0,0)", "[4,2]", "{{0,x}}", "{{0"]
        {
            assert_eq!(groups(&format!("replica_groups={text}, a=b")), None, "{text}");
        }
        assert_eq!(groups("replica_groups=[1048577,1]<=[1048577]"), None);
        assert_eq!(groups("replica_groups=[99999999999,99999999999]<=[4,99999999999,99999999999]"), None);
        assert_eq!(groups("replica_groups=[2,2]<=[4], a").unwrap().group_of(3, 4), Group::Members(vec![2, 3]));
        let one = groups("replica_groups=[1,8]<=[8]").unwrap();
        assert_eq!((one.group_of(3, 4), one.group_of(3, 8)), (Group::All(Some(8)), Group::All(Some(8))));
    }
}
