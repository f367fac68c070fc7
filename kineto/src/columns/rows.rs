//! Puts the pieces of a file together: joins the names and tracks of all workers, sorts rows, finds parents.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::Text;
use trace::name_rules::NameClass;
use trace::rank::{CopyRate, Events, FlopsType, KernelUse, Kind, NO_PARENT, NO_STEP, NONE, communicates};
use trace::time_limits::{MAX_LENGTH_NS, longest_ns, plausible_starts};

use crate::bytes::json::Str;
use crate::bytes::text;
use crate::columns::args::Template;
use crate::columns::batch::{Allocation, Columns, FarStreams, FlowEnd, Interner, Scratch, Tally, widen};
use crate::columns::event::is_device_row;
use crate::columns::order::{MIN_ROWS, Places, order_rows, rows_in};
use crate::columns::unknown::{Meanings, settle_unknown};

/// Traces before 2024 hold whole µs. Start and length are rounded down separately, so a child may seem to end
/// up to 1 µs after its parent.
const WHOLE_US_SLACK_NS: i64 = 1000;

/// The rows of a file, without steps and collectives.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) events: Events,
    pub(crate) names: Vec<Text>,
    /// Shapes of the inputs per row, as text; empty unless they were wanted.
    pub(crate) shapes: Vec<Option<Text>>,
    /// All arguments; empty unless they were wanted.
    pub(crate) extras: Extras,
    /// The arguments of rows that may belong to a collective, by row.
    pub(crate) comm_args: BTreeMap<u32, Box<[u8]>>,
    /// Allocations, with the process and thread of each.
    pub(crate) allocations: Vec<(Allocation, (i64, i64))>,
    pub(crate) kernel_use: Vec<KernelUse>,
    pub(crate) copy_rates: Vec<CopyRate>,
    pub(crate) flops_types: Vec<FlopsType>,
    /// Arrows, with the process and thread of each end.
    pub(crate) flows: Vec<(FlowEnd, (i64, i64))>,
    pub(crate) tally: Tally,
    /// Rows of unknown categories in processes that have device rows, by category.
    pub(crate) unknown_on_devices: BTreeMap<Text, u64>,
    /// Process ids of host rows, and how many rows each has.
    pub(crate) pids: BTreeMap<i64, u64>,
    /// Times are whole µs.
    pub(crate) whole_us: bool,
}

/// The columns that only `ingest` keeps, in the order of the file, which is a row's `id`.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) categories: Vec<Text>,
    pub(crate) category: Vec<u32>,
    pub(crate) templates: Vec<Template>,
    /// Template of each row, plus one; 0 for no arguments.
    pub(crate) template: Vec<u32>,
    pub(crate) first_number: Vec<u64>,
    pub(crate) numbers: Vec<u8>,
    /// Process of each row.
    pub(crate) pid: Vec<i64>,
}

/// Puts the pieces together. Times become absolute by `base_ns`.
pub(crate) fn rows_from_pieces(
    mut pieces: Vec<(u32, Columns)>,
    scratches: BTreeMap<u32, Scratch>,
    base_ns: i64,
) -> Rows {
    let mut rows = Rows::default();
    let maps = merge_scratches(scratches, &mut rows.names);
    pieces.par_iter_mut().for_each(|(number, piece)| {
        if let Some(map) = maps.get(number) {
            piece.name.iter_mut().for_each(|name| *name = map.names[*name as usize]);
        }
    });
    let mut streams = common_streams(&mut pieces, &maps);
    pieces.iter().for_each(|(_, piece)| rows.tally.add(&piece.tally));
    let meanings = |number: u32| {
        let map = maps.get(&number)?;
        Some(Meanings { tracks: &map.tracks, categories: &map.categories })
    };
    rows.unknown_on_devices = settle_unknown(&mut pieces, meanings, &rows.names, (&mut rows.tally, &mut streams));
    let sparse: Vec<SparseColumns> =
        pieces.iter_mut().map(|(number, piece)| SparseColumns::take(*number, piece)).collect();
    let whole = |(_, p): &(u32, Columns)| p.ts_ns.iter().zip(&p.dur_ns).all(|(t, d)| t % 1000 == 0 && d % 1000 == 0);
    rows.whole_us = pieces.par_iter().all(whole);
    let (mut order, (tracks, pids)) = rayon::join(
        || order_rows(&pieces),
        || {
            gather_sparse_columns(sparse, &maps, base_ns, &mut rows);
            (TrackColumn::of(&pieces, &maps), host_pids(&pieces, &maps))
        },
    );
    rows.pids = pids;
    if pieces.iter().any(|(_, piece)| !piece.category.is_empty()) {
        gather_extras(&mut pieces, &maps, &tracks, &mut rows.extras);
    }
    drop_impossible(&mut order, &pieces, base_ns, &mut rows);
    fill_columns(pieces, &order, (base_ns, &streams), &mut rows.events);
    let slack_ns = if rows.whole_us { WHOLE_US_SLACK_NS } else { 0 };
    let Rows { events, names, .. } = &rows;
    let track_ids: Vec<u32> = order.par_iter().with_min_len(MIN_ROWS).map(|row| tracks.ids[*row as usize]).collect();
    let (parent, (thread, is_comm)) = rayon::join(
        || parents(events, &track_ids, slack_ns),
        || (threads(events, &track_ids, &tracks.pairs), communication(events, names)),
    );
    (rows.events.parent, rows.events.thread, rows.events.is_comm) = (parent, thread, is_comm);
    renumber_sparse_columns(&order, &mut rows);
    rows
}

/// The meaning of one worker's ids.
struct IdMap {
    /// Indices of the common names.
    names: Vec<u32>,
    tracks: Vec<(i64, i64)>,
    streams: FarStreams,
    shapes: Vec<Text>,
    categories: Vec<Text>,
    templates: Vec<Template>,
}

fn merge_scratches(scratches: BTreeMap<u32, Scratch>, names: &mut Vec<Text>) -> BTreeMap<u32, IdMap> {
    let mut known: FxHashMap<Text, u32> = FxHashMap::default();
    let decode = |raw: &[u8]| text::decode(Str { raw, escaped: memchr::memchr(b'\\', raw).is_some() });
    scratches
        .into_iter()
        .map(|(number, scratch)| {
            let map = scratch
                .names
                .into_strings()
                .iter()
                .map(|raw| {
                    let name: Text = decode(raw).into();
                    *known.entry(name.clone()).or_insert_with(|| {
                        names.push(name);
                        names.len() as u32 - 1
                    })
                })
                .collect();
            let texts = |strings: Interner| strings.into_strings().iter().map(|raw| decode(raw).into()).collect();
            let templates = scratch.templates.into_strings().iter().map(|raw| Template::decode(raw)).collect();
            let (shapes, categories) = (texts(scratch.shapes), texts(scratch.categories));
            let (tracks, streams) = (scratch.tracks.into_pairs(), scratch.streams);
            (number, IdMap { names: map, tracks, streams, shapes, categories, templates })
        })
        .collect()
}

/// Gives streams beyond 32 bits the same numbers in all pieces.
fn common_streams(pieces: &mut [(u32, Columns)], maps: &BTreeMap<u32, IdMap>) -> FarStreams {
    let mut common = FarStreams::default();
    for (number, piece) in pieces {
        let Some(own) = maps.get(number).map(|map| &map.streams).filter(|own| !own.is_empty()) else { continue };
        for stream in &mut piece.stream {
            if let Some(id) = own.id(*stream) {
                *stream = common.number(id);
            }
        }
    }
    common
}

/// The columns of a piece that only few rows have.
struct SparseColumns {
    /// Number of the scratch that the ids belong to.
    scratch: u32,
    /// Rows of the piece.
    rows: usize,
    comm_args: Vec<(u32, Box<[u8]>)>,
    kernel_use: Vec<KernelUse>,
    copy_rates: Vec<CopyRate>,
    flops_types: Vec<FlopsType>,
    allocations: Vec<Allocation>,
    flows: Vec<FlowEnd>,
    shape: Vec<u32>,
}

impl SparseColumns {
    /// Takes the columns out of the piece.
    fn take(scratch: u32, piece: &mut Columns) -> Self {
        Self {
            scratch,
            rows: piece.len(),
            comm_args: std::mem::take(&mut piece.comm_args),
            kernel_use: std::mem::take(&mut piece.kernel_use),
            copy_rates: std::mem::take(&mut piece.copy_rates),
            flops_types: std::mem::take(&mut piece.flops_types),
            allocations: std::mem::take(&mut piece.allocations),
            flows: std::mem::take(&mut piece.flows),
            shape: std::mem::take(&mut piece.shape),
        }
    }
}

/// Joins the sparse columns of the pieces. Row numbers become those of the whole file.
fn gather_sparse_columns(sparse: Vec<SparseColumns>, maps: &BTreeMap<u32, IdMap>, base_ns: i64, rows: &mut Rows) {
    let mut first = 0u32;
    // Reserve exactly: a vector that grows by doubling takes up to three times its size for a moment.
    rows.allocations.reserve_exact(sparse.iter().map(|piece| piece.allocations.len()).sum());
    rows.kernel_use.reserve_exact(sparse.iter().map(|piece| piece.kernel_use.len()).sum());
    rows.flows.reserve_exact(sparse.iter().map(|piece| piece.flows.len()).sum());
    for piece in sparse {
        let absolute = |ts_ns: i64| ts_ns.saturating_add(base_ns);
        rows.comm_args.extend(piece.comm_args.into_iter().map(|(row, args)| (first + row, args)));
        let id = |id: i64| i64::from(first) + id;
        rows.kernel_use.extend(piece.kernel_use.into_iter().map(|u| KernelUse { id: id(u.id), ..u }));
        rows.flops_types.extend(piece.flops_types.into_iter().map(|t| FlopsType { id: id(t.id), ..t }));
        rows.copy_rates.extend(piece.copy_rates.into_iter().map(|r| CopyRate { id: id(r.id), ..r }));
        if let Some(map) = maps.get(&piece.scratch) {
            rows.allocations.extend(piece.allocations.into_iter().map(|allocation| {
                let ts_ns = absolute(allocation.ts_ns);
                (Allocation { ts_ns, ..allocation }, map.tracks[allocation.track as usize])
            }));
            rows.flows.extend(piece.flows.into_iter().map(|flow| {
                let end = FlowEnd { ts_ns: absolute(flow.ts_ns), ..flow };
                (end, map.tracks[flow.track as usize])
            }));
            let shape = |id: &u32| id.checked_sub(1).map(|id| map.shapes[id as usize].clone());
            rows.shapes.extend(piece.shape.iter().map(shape));
        }
        first += piece.rows as u32;
    }
    rows.allocations.sort_by_key(|(a, _)| a.ts_ns);
}

/// Moves the columns of arguments out of the pieces.
fn gather_extras(
    pieces: &mut [(u32, Columns)],
    maps: &BTreeMap<u32, IdMap>,
    tracks: &TrackColumn,
    extras: &mut Extras,
) {
    let mut first: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for (number, map) in maps {
        first.insert(*number, (extras.categories.len() as u32, extras.templates.len() as u32));
        extras.categories.extend(map.categories.iter().cloned());
        extras.templates.extend(map.templates.iter().cloned());
    }
    for (number, piece) in pieces {
        let (category, template) = first.get(number).copied().unwrap_or_default();
        let numbers = extras.numbers.len() as u64;
        extras.category.extend(std::mem::take(&mut piece.category).iter().map(|id| category + id));
        let shifted = |id: &u32| if *id == 0 { 0 } else { template + id };
        extras.template.extend(std::mem::take(&mut piece.template).iter().map(shifted));
        let starts = std::mem::take(&mut piece.first_number);
        extras.first_number.extend(starts.iter().map(|start| numbers + u64::from(*start)));
        extras.numbers.append(&mut piece.numbers);
    }
    extras.pid = tracks.ids.iter().map(|id| tracks.pairs[*id as usize].0).collect();
}

/// Every row's track, in the order of the file.
struct TrackColumn {
    /// Dense ids; host tracks and device tracks never share one.
    ids: Vec<u32>,
    /// Process and thread of each id.
    pairs: Vec<(i64, i64)>,
}

impl TrackColumn {
    fn of(pieces: &[(u32, Columns)], maps: &BTreeMap<u32, IdMap>) -> Self {
        let mut known: FxHashMap<(i64, i64), u32> = FxHashMap::default();
        let mut tracks = Self { ids: Vec::with_capacity(rows_in(pieces)), pairs: Vec::new() };
        let mut common = |pair: &(i64, i64)| {
            *known.entry(*pair).or_insert_with(|| {
                tracks.pairs.push(*pair);
                tracks.pairs.len() as u32 - 1
            })
        };
        let local: BTreeMap<u32, Vec<u32>> =
            maps.iter().map(|(number, map)| (*number, map.tracks.iter().map(&mut common).collect())).collect();
        for (number, piece) in pieces {
            let Some(local) = local.get(number) else { continue };
            tracks.ids.extend(piece.track.iter().map(|id| local[*id as usize]));
        }
        tracks
    }
}

/// Leaves out rows and allocations of impossible times. Rows far from the others lie at the ends of the sorted rows, so
/// this reads only a few rows, and all of them only where their lengths sum to too much.
fn drop_impossible(order: &mut Vec<u32>, pieces: &[(u32, Columns)], base_ns: i64, rows: &mut Rows) {
    let places = Places::of(pieces);
    let start_ns = |row: u32| {
        let (piece, at) = places.find(row);
        pieces[piece].1.ts_ns[at].saturating_add(base_ns)
    };
    let (kept, window) = plausible_starts(order.len(), |at| start_ns(order[at]));
    rows.tally.far += (order.len() - kept.len()) as u64;
    order.truncate(kept.end);
    order.drain(..kept.start);
    let longest_ns = longest_ns(rows_in(pieces), rows.tally.length_ns);
    if longest_ns < MAX_LENGTH_NS {
        let before = order.len();
        order.retain(|row| {
            let (piece, at) = places.find(*row);
            pieces[piece].1.dur_ns[at] <= longest_ns
        });
        rows.tally.too_long += (before - order.len()) as u64;
    }
    let before = rows.allocations.len();
    rows.allocations.retain(|(allocation, _)| window.holds(allocation.ts_ns));
    rows.tally.bad_memory += (before - rows.allocations.len()) as u64;
}

/// Processes of host rows, and how many rows each has.
fn host_pids(pieces: &[(u32, Columns)], maps: &BTreeMap<u32, IdMap>) -> BTreeMap<i64, u64> {
    let mut pids = BTreeMap::new();
    for (number, piece) in pieces {
        let Some(map) = maps.get(number) else { continue };
        let mut host_rows = vec![0u64; map.tracks.len()];
        for (kind, id) in piece.kind.iter().zip(&piece.track) {
            let host = matches!(kind, Kind::CpuOp | Kind::Runtime | Kind::UserAnnotation | Kind::PythonFunction);
            host_rows[*id as usize] += u64::from(host);
        }
        for (pair, count) in map.tracks.iter().zip(host_rows).filter(|(_, count)| *count > 0) {
            *pids.entry(pair.0).or_default() += count;
        }
    }
    pids
}

/// Joins one column of all pieces in the final order. `flat` is scratch memory that is used again.
fn column<T: Copy + Send + Sync, U: Send>(
    parts: Vec<Vec<T>>,
    flat: &mut Vec<T>,
    order: &[u32],
    convert: impl Fn(T) -> U + Sync,
) -> Vec<U> {
    flat.clear();
    flat.reserve_exact(order.len());
    parts.into_iter().for_each(|part| flat.extend_from_slice(&part));
    in_order(order, |row| convert(flat[row]))
}

/// Joins one column that only few rows of the pieces have in the final order. A row is found by its place, because to search a map
/// for each row takes longer than to join all other columns.
fn sparse_column(parts: Vec<(usize, Vec<(u32, i64)>)>, order: &[u32]) -> Vec<i64> {
    if parts.iter().all(|(_, values)| values.is_empty()) {
        return vec![NONE; order.len()];
    }
    let mut flat = vec![NONE; parts.iter().map(|(rows, _)| rows).sum()];
    let mut first = 0;
    for (rows, values) in parts {
        values.into_iter().for_each(|(row, value)| flat[first + row as usize] = value);
        first += rows;
    }
    in_order(order, |row| flat[row])
}

fn in_order<U: Send>(order: &[u32], value: impl Fn(usize) -> U + Sync) -> Vec<U> {
    order.par_iter().with_min_len(MIN_ROWS).map(|row| value(*row as usize)).collect()
}

fn fill_columns(
    mut pieces: Vec<(u32, Columns)>,
    order: &[u32],
    (base_ns, streams): (i64, &FarStreams),
    events: &mut Events,
) {
    macro_rules! take {
        ($column:ident) => {
            pieces.iter_mut().map(|(_, p)| std::mem::take(&mut p.$column)).collect()
        };
        (sparse $column:ident) => {
            pieces.iter_mut().map(|(_, p)| (p.len(), std::mem::take(&mut p.$column))).collect()
        };
    }
    let (bytes, flops) = (take!(sparse bytes), take!(sparse flops));
    let (ts_ns, dur_ns, correlation, external) = (take!(ts_ns), take!(dur_ns), take!(correlation), take!(external));
    let (device, stream, name, kind) = (take!(device), take!(stream), take!(name), take!(kind));
    let Events { ts_ns: to_ts, dur_ns: to_dur, correlation: to_correlation, external: to_external, .. } = events;
    let Events { device: to_device, stream: to_stream, name: to_name, kind: to_kind, id: to_id, .. } = events;
    let Events { step: to_step, flops: to_flops, bytes: to_bytes, .. } = events;
    rayon::join(
        || {
            let flat = &mut Vec::new();
            *to_ts = column(ts_ns, flat, order, |ts: i64| ts.saturating_add(base_ns));
            *to_dur = column(dur_ns, flat, order, |dur| dur);
            *to_name = column(name, &mut Vec::new(), order, |name| name);
            *to_kind = column(kind, &mut Vec::new(), order, |kind| kind);
            *to_bytes = sparse_column(bytes, order);
            *to_step = vec![NO_STEP; order.len()];
        },
        || {
            let flat = &mut Vec::new();
            *to_correlation = column(correlation, flat, order, |id| id);
            *to_external = column(external, flat, order, |id| id);
            let flat = &mut Vec::new();
            *to_device = column(device, flat, order, widen);
            *to_stream = column(stream, flat, order, |number| streams.id(number).unwrap_or(widen(number)));
            *to_flops = sparse_column(flops, order);
            *to_id = in_order(order, |row| row as i64);
        },
    );
}

/// Whether each row communicates, by its name.
fn communication(events: &Events, names: &[Text]) -> Vec<bool> {
    let classes: Vec<NameClass> = names.iter().map(|name| NameClass::of(name)).collect();
    events
        .kind
        .iter()
        .zip(&events.name)
        .map(|(kind, name)| communicates(classes[*name as usize], *kind, None))
        .collect()
}

/// The thread of each host row.
fn threads(events: &Events, tracks: &[u32], pairs: &[(i64, i64)]) -> Vec<i64> {
    let thread = |(track, kind): (&u32, &Kind)| if is_device_row(*kind) { NONE } else { pairs[*track as usize].1 };
    tracks.iter().zip(&events.kind).map(thread).collect()
}

/// The enclosing row of each host row on its track; device rows have none.
///
/// ```text
/// a ──────────────────
///    b ────   d ──
///      c ─             c in b, b and d in a
/// ```
fn parents(events: &Events, tracks: &[u32], slack_ns: i64) -> Vec<u32> {
    // Half of the tracks on each of two threads.
    let of_half = |odd: u32| parents_on(events, tracks, slack_ns, |track| track % 2 == odd);
    let (mut parents, of_odd) = rayon::join(|| of_half(0), || of_half(1));
    parents.iter_mut().zip(of_odd).for_each(|(parent, odd)| *parent = odd.min(*parent));
    parents
}

/// The enclosing row of each host row on the wanted tracks, and [`NO_PARENT`], which is the largest number, for all others.
fn parents_on(events: &Events, tracks: &[u32], slack_ns: i64, is_wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let count = tracks.iter().max().map_or(0, |most| *most as usize + 1);
    let mut open: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut parents = vec![NO_PARENT; tracks.len()];
    for row in 0..tracks.len() {
        if !is_wanted(tracks[row]) || is_device_row(events.kind[row]) {
            continue;
        }
        let stack = &mut open[tracks[row] as usize];
        let (start, end) = (events.ts_ns[row], events.end_ns(row));
        // A row that begins where another ends comes after it. Of two rows without length at one time, the second is
        // inside the first.
        while let Some(top) = stack.last()
            && let top_end = events.end_ns(*top as usize)
            && (top_end < start || top_end == start && events.ts_ns[*top as usize] < start)
        {
            stack.pop();
        }
        let holds = |candidate: &&u32| {
            let (from, to) = (events.ts_ns[**candidate as usize], events.end_ns(**candidate as usize));
            to.saturating_add(slack_ns) >= end && (to > start || from == start)
        };
        if let Some(parent) = stack.iter().rev().find(holds) {
            parents[row] = *parent;
        }
        // A row that ends no later than this one holds no later row that this one does not hold. Without such rows, each
        // row is passed once, however many overlap.
        while stack.last().is_some_and(|top| events.end_ns(*top as usize) <= end) {
            stack.pop();
        }
        stack.push(row as u32);
    }
    parents
}

/// Renumbers the sparse columns from the order of the file to the final order.
fn renumber_sparse_columns(order: &[u32], rows: &mut Rows) {
    if !rows.shapes.is_empty() {
        let old = std::mem::take(&mut rows.shapes);
        rows.shapes = order.iter().map(|row| old[*row as usize].clone()).collect();
    }
    if rows.comm_args.is_empty() {
        return;
    }
    let mut old = std::mem::take(&mut rows.comm_args);
    // Few rows have arguments. A bit for each row saves the search for all others.
    let mut has = vec![0u64; old.last_key_value().map_or(0, |(last, _)| *last as usize / 64 + 1)];
    old.keys().for_each(|row| has[*row as usize / 64] |= 1 << (row % 64));
    let has_any = |row: &u32| has.get(*row as usize / 64).is_some_and(|bits| bits >> (row % 64) & 1 == 1);
    for (new, row) in order.iter().enumerate().filter(|(_, row)| has_any(row)) {
        if let Some(args) = old.remove(row) {
            rows.comm_args.insert(new as u32, args);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Host rows from start and length, in the order in which rows are kept.
    fn host_rows(mut rows: Vec<(i64, i64)>) -> Events {
        rows.sort_by_key(|(start, length)| (*start, -length));
        let (ts_ns, dur_ns): (Vec<i64>, Vec<i64>) = rows.into_iter().unzip();
        Events { kind: vec![Kind::CpuOp; ts_ns.len()], ts_ns, dur_ns, ..Events::default() }
    }

    proptest! {
        #[test]
        fn the_parent_is_the_last_row_that_holds_a_row(
            rows in prop::collection::vec((0..40_i64, 0..15_i64), 0..60),
            slack_ns in 0..3_i64,
        ) {
            let events = host_rows(rows);
            let found = parents(&events, &vec![0; events.len()], slack_ns);
            for (row, found) in found.into_iter().enumerate() {
                let (start, end) = (events.ts_ns[row], events.end_ns(row));
                let holds = |other: &usize| {
                    let (from, to) = (events.ts_ns[*other], events.end_ns(*other));
                    to + slack_ns >= end && (to > start || from == start)
                };
                let expected = (0..row).rev().find(holds).map_or(NO_PARENT, |parent| parent as u32);
                prop_assert_eq!(found, expected);
            }
        }
    }

    /// A search of all open rows for each row would look at 10¹¹ rows.
    #[test]
    fn rows_that_overlap_take_little_time() {
        const ROWS: i64 = 400_000;
        let events = host_rows((0..ROWS).map(|row| (row, ROWS)).collect());
        let found = parents(&events, &vec![0; events.len()], 0);
        assert!(found.iter().all(|parent| *parent == NO_PARENT));
    }
}
