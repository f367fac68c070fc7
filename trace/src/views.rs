//! The SQL views of a run: their names, columns, documentation and queries.
//!
//! A view with the name of a table counts each thing once and holds one kind of rows. Where the files of a table hold
//! more than that, the view `<table>_raw` has all their rows.

use arrow_array::{Array, BooleanArray, Int32Array, RecordBatch};
use arrow_schema::{ArrowError, DataType, TimeUnit};

use crate::{ColumnInfo, Table, Writer, analysis_tables, rank_tables};

/// A view of a run.
#[derive(Clone, Debug)]
pub struct View {
    /// The name.
    pub name: String,
    /// One row of the view, in a sentence, and how it differs from its table.
    pub doc: String,
    /// The difference from the table of the same name; `None` if there is none, or no such table.
    pub note: Option<&'static str>,
    /// The columns in order.
    pub columns: Vec<ColumnInfo>,
    /// The origin of the rows.
    pub source: ViewSource,
    /// Its table, and the rows of that table that it holds; `None` if it holds all of them, or other rows.
    part: Option<(&'static str, Rows)>,
}

impl View {
    /// The table of the aggregator whose rows it holds, or a part of them.
    pub fn analysis_table(&self) -> Option<&'static str> {
        match (&self.source, self.part) {
            (ViewSource::Files(table), _) => (table.writer == Writer::Aggregator).then_some(table.name),
            (ViewSource::Query { of_ranks, .. }, Some((table, _))) => (!of_ranks).then_some(table),
            (ViewSource::Query { .. }, None) => None,
        }
    }

    /// Its rows of a batch of that table.
    ///
    /// # Errors
    /// Those of Arrow.
    pub fn select(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        self.part.and_then(|(_, rows)| rows.of(batch)).unwrap_or_else(|| Ok(batch.clone()))
    }
}

/// The origin of a view's rows.
#[derive(Clone, Debug)]
pub enum ViewSource {
    /// The files of a table.
    Files(Table),
    /// A query over earlier views, in DuckDB's SQL. Names of views follow `$.`, which stands for their schema.
    Query {
        /// The query.
        sql: String,
        /// Whether it reads tables of the ranks.
        of_ranks: bool,
    },
}

/// Views that replace a table, or stand beside it.
struct Refined {
    table: &'static str,
    views: &'static [Part],
}

/// A part of the rows of a table.
struct Part {
    /// The name of the view.
    name: &'static str,
    /// The rows that it holds.
    doc: &'static str,
    rows: Rows,
}

/// The rows of a table that a view of it holds.
#[derive(Clone, Copy, Debug)]
enum Rows {
    /// Those with a number or a name in this column.
    Single(&'static str),
    /// Those with −1 in this column, which the view leaves out.
    Between(&'static str),
    /// Those without a value in this column, which the view leaves out.
    Total(&'static str),
    /// Those that a query finds.
    Query(&'static str),
}

impl Rows {
    /// The column that has one value in all its rows.
    fn without(self) -> Option<&'static str> {
        match self {
            Self::Between(column) | Self::Total(column) => Some(column),
            Self::Single(_) | Self::Query(_) => None,
        }
    }

    /// The query that finds them among those of `table`.
    fn sql(self, table: &Table) -> String {
        let raw = format!("$.{}_raw", table.name);
        match self {
            Self::Single(column) if table.column(column).is_some_and(|at| is_number(table, at)) => {
                format!("SELECT * FROM {raw} WHERE {column} >= 0")
            }
            Self::Single(column) => format!("SELECT * FROM {raw} WHERE {column} IS NOT NULL"),
            Self::Between(column) => format!("SELECT * EXCLUDE ({column}) FROM {raw} WHERE {column} = -1"),
            Self::Total(column) => format!("SELECT * EXCLUDE ({column}) FROM {raw} WHERE {column} IS NULL"),
            Self::Query(sql) => sql.into(),
        }
    }

    /// The same rows of a batch of the table; `None` of a query.
    fn of(self, batch: &RecordBatch) -> Option<Result<RecordBatch, ArrowError>> {
        let (Self::Single(column) | Self::Between(column) | Self::Total(column)) = self else { return None };
        let at = batch.schema().index_of(column).ok()?;
        let values = batch.column(at);
        let numbers = values.as_any().downcast_ref::<Int32Array>();
        let holds = |row: usize| match self {
            Self::Total(_) => values.is_null(row),
            Self::Between(_) => numbers.is_some_and(|of| of.is_valid(row) && of.value(row) == -1),
            _ => values.is_valid(row) && numbers.is_none_or(|of| of.value(row) >= 0),
        };
        let wanted: BooleanArray = (0..batch.num_rows()).map(|row| Some(holds(row))).collect();
        let found = arrow_select::filter::filter_record_batch(batch, &wanted);
        let columns = (0..batch.num_columns()).filter(|column| self.without().is_none() || *column != at);
        let columns: Vec<usize> = columns.collect();
        Some(found.and_then(|found| found.project(&columns)))
    }
}

fn is_number(table: &Table, at: usize) -> bool {
    table.columns[at].data_type == DataType::Int32
}

const fn part(name: &'static str, doc: &'static str, rows: Rows) -> Part {
    Part { name, doc, rows }
}

const REFINED: [Refined; 9] = [
    Refined {
        table: "step_breakdown",
        views: &[
            part("step_breakdown", "Steps only.", Rows::Single("step")),
            part(
                "step_breakdown_gaps",
                "The time between steps, as one row per rank and device.",
                Rows::Between("step"),
            ),
            part(
                "step_breakdown_total",
                "Everything recorded, as one row per rank and device: the steps and the time between them.",
                Rows::Total("step"),
            ),
        ],
    },
    Refined {
        table: "gpu_utilization",
        views: &[
            part("gpu_utilization", "Steps only.", Rows::Single("step")),
            part(
                "gpu_utilization_total",
                "All active steps together, as one row per rank and device.",
                Rows::Total("step"),
            ),
        ],
    },
    Refined {
        table: "gpu_metrics",
        views: &[
            part("gpu_metrics", "Steps only.", Rows::Single("step")),
            part(
                "gpu_metrics_total",
                "Everything recorded, as one row per rank, device and metric.",
                Rows::Total("step"),
            ),
        ],
    },
    Refined {
        table: "data_loading",
        views: &[
            part("data_loading", "Steps only.", Rows::Single("step")),
            part("data_loading_total", "Everything recorded, as one row per rank.", Rows::Total("step")),
        ],
    },
    Refined {
        table: "launch_stats",
        views: &[
            part("launch_stats", "Names only.", Rows::Single("name")),
            part("launch_stats_total", "All names together, as one row per rank and device.", Rows::Total("name")),
        ],
    },
    Refined {
        table: "events",
        views: &[part(
            "events",
            "An interval that was open at the end of a part counts once, with the greatest length that was recorded.",
            // Few rows are open, so only rows with their ids are compared.
            Rows::Query(
                "SELECT * FROM $.events_raw
WHERE open IS NOT TRUE OR (rank, id, dur_ns) IN (
    SELECT rank, id, max(CASE WHEN open THEN dur_ns ELSE 9223372036854775807 END)
    FROM $.events_raw SEMI JOIN (SELECT rank, id FROM $.events_raw WHERE open) AS opened USING (rank, id)
    GROUP BY rank, id)",
            ),
        )],
    },
    Refined {
        table: "collectives",
        views: &[part(
            "collectives",
            "A collective that a part shows unfinished counts once, with its last state.",
            Rows::Query(
                "SELECT * FROM $.collectives_raw WHERE state = 'done' OR seq IS NULL
UNION ALL
SELECT * FROM $.collectives_raw AS c
WHERE state <> 'done' AND seq IS NOT NULL AND NOT EXISTS (
    FROM $.collectives_raw AS d
    WHERE d.state = 'done' AND d.rank = c.rank AND d.comm_id = c.comm_id AND d.seq = c.seq AND d.op = c.op
      AND d.peer IS NOT DISTINCT FROM c.peer)
QUALIFY row_number() OVER (PARTITION BY rank, comm_id, seq, op, peer ORDER BY state = 'started' DESC) = 1",
            ),
        )],
    },
    Refined {
        table: "comms",
        views: &[part(
            "comms",
            "The last row of each rank and communicator.",
            Rows::Query(
                "SELECT * FROM $.comms_raw
QUALIFY row_number() OVER (PARTITION BY rank, comm_id ORDER BY destroyed_ns IS NULL, ranks IS NULL, name IS NULL) = 1",
            ),
        )],
    },
    Refined {
        table: "ranks",
        views: &[part(
            "ranks",
            "The last row of each process: one row per rank, unless several processes record a rank together.",
            Rows::Query(
                "SELECT * FROM $.ranks_raw
QUALIFY row_number() OVER (PARTITION BY rank, pid ORDER BY closed_cleanly DESC) = 1",
            ),
        )],
    },
];

/// A fit for every rank and both kinds of rows: device rows use the fit of the device, if there is one. A clock that jumped
/// has several, each but the first from its `origin_ns` on.
const GLOBAL_EVENTS: &str = "\
WITH used AS (
    SELECT *, false AS of_device FROM $.clock_fit WHERE clock = 'host'
    UNION ALL
    SELECT *, true FROM $.clock_fit QUALIFY rank() OVER (PARTITION BY rank ORDER BY clock = 'device' DESC) = 1
), fits AS (
    SELECT *,
        CASE WHEN row_number() OVER pieces > 1 THEN origin_ns END AS from_ns,
        lead(origin_ns) OVER pieces AS until_ns
    FROM used WINDOW pieces AS (PARTITION BY rank, of_device ORDER BY origin_ns)
)
SELECT
    e.*,
    e.ts_ns + c.offset_ns + CAST(round(coalesce(c.drift_ppb, 0) * (e.ts_ns - c.origin_ns) / 1e9) AS BIGINT) AS global_ts_ns,
    c.error_ns + greatest(c.bias_ns - c.error_ns, 0) AS global_error_ns,
    c.clock
FROM $.events AS e
LEFT JOIN fits AS c
  ON c.rank = e.rank
 AND c.of_device = (e.device_id IS NOT NULL
     AND e.kind IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'gpu_user_annotation', 'cuda_sync'))
 AND (c.from_ns IS NULL OR e.ts_ns >= c.from_ns)
 AND (c.until_ns IS NULL OR e.ts_ns < c.until_ns)";

/// A line through the first and the last sample. Its error covers all samples: the distance from the line, and half of
/// the round trip.
const UTC_FIT: &str = "\
WITH fits AS (
    SELECT *,
        CASE WHEN row_number() OVER pieces > 1 THEN origin_ns END AS from_ns,
        lead(origin_ns) OVER pieces AS until_ns
    FROM $.clock_fit WHERE clock = 'host' WINDOW pieces AS (PARTITION BY rank ORDER BY origin_ns)
), samples AS (
    SELECT s.rank, s.rtt_ns,
        s.local_ns + c.offset_ns + CAST(round(coalesce(c.drift_ppb, 0) * (s.local_ns - c.origin_ns) / 1e9) AS BIGINT)
            AS global_ns,
        s.remote_ns - global_ns AS offset_ns
    FROM $.clock_samples AS s JOIN fits AS c ON c.rank = s.rank
        AND (c.from_ns IS NULL OR s.local_ns >= c.from_ns) AND (c.until_ns IS NULL OR s.local_ns < c.until_ns)
    WHERE s.kind = 'utc'
), ends AS (
    SELECT rank, count(*) AS samples, min(global_ns) AS origin_ns, arg_min(offset_ns, global_ns) AS offset_ns,
        1e9 * (arg_max(offset_ns, global_ns) - arg_min(offset_ns, global_ns)) / nullif(max(global_ns) - min(global_ns), 0)
            AS drift_ppb
    FROM samples GROUP BY rank
)
SELECT e.rank, e.offset_ns, e.drift_ppb, e.origin_ns,
    CAST(max(abs(s.offset_ns - e.offset_ns - e.drift_ppb * (s.global_ns - e.origin_ns) / 1e9) + ceil(s.rtt_ns / 2)) AS BIGINT)
        AS error_ns,
    e.samples
FROM ends AS e JOIN samples AS s USING (rank)
GROUP BY ALL";

const GLOBAL_EVENTS_UTC: &str = "\
SELECT e.*,
    make_timestamp_ns(e.global_ts_ns + u.offset_ns
        + CAST(round(coalesce(u.drift_ppb, 0) * (e.global_ts_ns - u.origin_ns) / 1e9) AS BIGINT)) AS utc,
    u.error_ns + CASE WHEN e.clock = 'device' THEN e.global_error_ns ELSE 0 END AS utc_error_ns
FROM $.global_events AS e LEFT JOIN $.utc_fit AS u ON u.rank = e.rank";

/// One row per launch, as in HTA's launch statistics; `launch_stats` summarizes them.
const LAUNCHES: &str = "\
SELECT
    g.rank, g.device_id, g.stream_id, g.step, g.correlation_id, h.name AS api_call, g.name,
    h.ts_ns, h.dur_ns AS cpu_dur_ns, g.dur_ns AS gpu_dur_ns,
    greatest(0, g.ts_ns - h.ts_ns - h.dur_ns) AS launch_delay_ns
FROM $.flows AS f
JOIN $.events AS h ON h.rank = f.rank AND h.id = f.src_id
JOIN $.events AS g ON g.rank = f.rank AND g.id = f.dst_id
WHERE f.kind = 'launch'";

/// Every view of a run, each after those that it reads.
pub fn views() -> Vec<View> {
    let mut views = Vec::new();
    for table in analysis_tables().into_iter().chain(rank_tables()) {
        of_table(&mut views, table);
    }
    add_derived(&mut views);
    views
}

/// The views that hold the rows of a table of the aggregator, or a part of them.
pub fn views_of_analysis() -> impl Iterator<Item = View> {
    views().into_iter().filter(|view| view.analysis_table().is_some())
}

/// The views of a table: its files, and the parts of its rows.
fn of_table(views: &mut Vec<View>, table: Table) {
    let refined = REFINED.iter().find(|refined| refined.table == table.name);
    let (name, columns, of_ranks) = (table.name, table.columns.clone(), table.writer == Writer::Rank);
    let (raw, doc) = match refined {
        None => (name.to_string(), table.doc.to_string()),
        Some(_) => (format!("{name}_raw"), format!("All rows in the files of `{name}`. {}", table.doc)),
    };
    let doc_of_table = table.doc;
    let source = ViewSource::Files(table.clone());
    views.push(View { name: raw, doc, note: None, columns: columns.clone(), source, part: None });
    let parts = refined.map_or(&[][..], |refined| refined.views);
    let divides = |column: &str| parts.iter().any(|part| part.rows.without() == Some(column));
    for part in parts {
        let note = (part.name == name).then_some(part.doc);
        let doc = note.map_or(part.doc.to_string(), |note| format!("{doc_of_table} {note}"));
        let columns = columns.iter().filter(|column| Some(column.name) != part.rows.without()).cloned();
        let columns = columns.map(|c| if divides(c.name) { without_special_values(c) } else { c }).collect();
        let source = ViewSource::Query { sql: part.rows.sql(&table), of_ranks };
        views.push(View { name: part.name.into(), doc, note, columns, source, part: Some((name, part.rows)) });
    }
}

/// A column whose special values are in another view: its documentation without the part after the semicolon.
fn without_special_values(column: ColumnInfo) -> ColumnInfo {
    let doc = column.doc.split(';').next().unwrap_or(column.doc);
    ColumnInfo { doc, nullable: false, ..column }
}

fn add_derived(views: &mut Vec<View>) {
    let events = views.iter().find(|view| view.name == "events");
    let events = events.map(|view| view.columns.clone()).unwrap_or_default();
    let with = |base: &[ColumnInfo], added: &[Declared]| -> Vec<ColumnInfo> {
        base.iter().cloned().chain(added.iter().map(column)).collect()
    };
    let global = with(&events, &GLOBAL_COLUMNS);
    let utc = with(&global, &UTC_COLUMNS);
    let derived = [
        ("global_events", "`events` on the clock of the reference rank.", global, GLOBAL_EVENTS),
        (
            "utc_fit",
            "One row per rank: how global time maps to the UTC of its host, utc = global + offset + \
             drift·(global − origin). Recorded runs have it; ingested traces have none.",
            with(&[], &UTC_FIT_COLUMNS),
            UTC_FIT,
        ),
        (
            "global_events_utc",
            "`global_events` with wall-clock time, to join with the kernel log, DCGM or SLURM.",
            utc,
            GLOBAL_EVENTS_UTC,
        ),
        (
            "launches",
            "One row per piece of device work whose launch was recorded: the call, what it launched, and the delay \
             between.",
            with(&[], &LAUNCH_COLUMNS),
            LAUNCHES,
        ),
    ];
    for (name, doc, columns, sql) in derived {
        let source = ViewSource::Query { sql: sql.into(), of_ranks: true };
        views.push(View { name: name.into(), doc: doc.into(), note: None, columns, source, part: None });
    }
}

/// Name, type and documentation of a column that no table has.
type Declared = (&'static str, &'static str, &'static str);

const GLOBAL_COLUMNS: [Declared; 3] = [
    ("global_ts_ns", "BIGINT", "Start in global time, the clock of the reference rank; null without a clock fit."),
    ("global_error_ns", "BIGINT", "Error of `global_ts_ns` at 95 % confidence; null if unknown."),
    ("clock", "VARCHAR", "Clock of `ts_ns`, as in `clock_fit`: `host` or `device`."),
];

const UTC_COLUMNS: [Declared; 2] = [
    ("utc", "TIMESTAMP_NS", "Start in UTC, by the clock of the rank's host; null without samples of that clock."),
    (
        "utc_error_ns",
        "BIGINT",
        "Error of `utc` against the clock of the rank's host, from all samples; null if unknown. The error of that clock \
         is not known.",
    ),
];

const UTC_FIT_COLUMNS: [Declared; 6] = [
    ("rank", "INTEGER", "Global rank."),
    ("offset_ns", "BIGINT", "UTC − global time, at `origin_ns`."),
    ("drift_ppb", "DOUBLE", "Change of the offset; null with one sample."),
    ("origin_ns", "BIGINT", "Global time from which drift counts: that of the first sample."),
    (
        "error_ns",
        "BIGINT",
        "Largest distance of a sample from the line, with half of its round trip; null with one sample.",
    ),
    ("samples", "BIGINT", "Number of samples."),
];

const LAUNCH_COLUMNS: [Declared; 11] = [
    ("rank", "INTEGER", "Global rank."),
    ("device_id", "BIGINT", "Device number, as the process sees it."),
    ("stream_id", "BIGINT", "CUDA stream."),
    ("step", "INTEGER", "Training step of the launch; −1 between steps."),
    ("correlation_id", "BIGINT", "Number that the call and the work share."),
    ("api_call", "VARCHAR", "Name of the launching call."),
    ("name", "VARCHAR", "Name of the kernel, copy or fill."),
    ("ts_ns", "BIGINT", "Start of the launching call, in the rank's clock."),
    ("cpu_dur_ns", "BIGINT", "Length of the launching call."),
    ("gpu_dur_ns", "BIGINT", "Length of the launched work."),
    ("launch_delay_ns", "BIGINT", "Start on the device − end of the call; 0 if the work began earlier."),
];

fn column((name, type_name, doc): &Declared) -> ColumnInfo {
    let data_type = match *type_name {
        "BIGINT" => DataType::Int64,
        "INTEGER" => DataType::Int32,
        "DOUBLE" => DataType::Float64,
        "TIMESTAMP_NS" => DataType::Timestamp(TimeUnit::Nanosecond, None),
        _ => DataType::Utf8,
    };
    ColumnInfo { name, type_name, nullable: true, doc, data_type, vocabulary: None }
}
