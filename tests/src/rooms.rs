//! The rooms of the house, and which may import which: one table for crates, one for the folders of each crate.

use crate::layers::Room;

/// Crates, by their folder. A plain or build dependency on a crate of ours must be listed here, a dev-dependency here or
/// in [`DEV_ONLY`].
pub const CRATES: &[Room<'_>] = &[
    ("trace", &[]),
    ("kernels", &[]),
    ("launch", &[]),
    ("rank-agent/recorder", &["trace"]),
    ("rank-agent/sources", &["trace", "rank-agent/recorder"]),
    ("rank-agent/inject", &["trace", "rank-agent/recorder", "rank-agent/sources"]),
    ("kineto", &["trace"]),
    // The analysis. The spine, by stage:
    ("aggregator/model", &["trace", "kineto"]),
    ("aggregator/formats", &["trace", "kineto", "aggregator/model"]),
    ("aggregator/align", &["trace", "aggregator/model"]),
    ("aggregator/measure", &["trace", "aggregator/model"]),
    ("aggregator/topology", &["trace", "aggregator/model", "aggregator/measure"]),
    // Answers, by question:
    (
        "aggregator/account",
        &["trace", "aggregator/model", "aggregator/align", "aggregator/measure", "aggregator/topology"],
    ),
    (
        "aggregator/hang",
        &["trace", "kineto", "aggregator/model", "aggregator/formats", "aggregator/align", "aggregator/measure"],
    ),
    (
        "aggregator/findings",
        &[
            "trace",
            "aggregator/model",
            "aggregator/align",
            "aggregator/measure",
            "aggregator/topology",
            "aggregator/account",
            "aggregator/hang",
        ],
    ),
    ("aggregator/diff", &["trace", "aggregator/model", "aggregator/measure"]),
    ("aggregator/what-if", &["trace", "aggregator/model", "aggregator/account"]),
    ("aggregator/key-averages", &["trace", "aggregator/model"]),
    (
        "aggregator/pipeline",
        &[
            "trace",
            "aggregator/model",
            "aggregator/formats",
            "aggregator/align",
            "aggregator/measure",
            "aggregator/topology",
            "aggregator/account",
            "aggregator/hang",
            "aggregator/findings",
            "aggregator/diff",
        ],
    ),
    // Reports write values of the spine and of answers. None may run the pipeline.
    (
        "aggregator/report/text",
        &[
            "trace",
            "aggregator/model",
            "aggregator/hang",
            "aggregator/diff",
            "aggregator/what-if",
            "aggregator/key-averages",
        ],
    ),
    (
        "aggregator/report/html",
        &[
            "trace",
            "aggregator/model",
            "aggregator/align",
            "aggregator/topology",
            "aggregator/hang",
            "aggregator/diff",
            "aggregator/report/text",
        ],
    ),
    (
        "aggregator/report/timeline",
        &["trace", "kineto", "aggregator/model", "aggregator/formats", "aggregator/align", "aggregator/measure"],
    ),
    ("aggregator/report/tables", &["trace", "aggregator/model", "aggregator/measure"]),
    // Only commands import reports.
    (
        "aggregator",
        &[
            "trace",
            "kineto",
            "launch",
            "aggregator/model",
            "aggregator/formats",
            "aggregator/align",
            "aggregator/measure",
            "aggregator/hang",
            "aggregator/diff",
            "aggregator/what-if",
            "aggregator/key-averages",
            "aggregator/pipeline",
            "aggregator/report/text",
            "aggregator/report/html",
            "aggregator/report/timeline",
            "aggregator/report/tables",
        ],
    ),
    ("rank-agent/agent", &["trace", "rank-agent/recorder", "launch"]),
    (
        "rank-agent/train",
        &["trace", "rank-agent/recorder", "rank-agent/sources", "rank-agent/agent", "kernels", "launch"],
    ),
    ("rank-agent/mpi", &["rank-agent/agent"]),
    (
        "rank-agent",
        &[
            "trace",
            "kernels",
            "launch",
            "rank-agent/recorder",
            "rank-agent/agent",
            "rank-agent/train",
            "rank-agent/mpi",
        ],
    ),
    ("rankscope", &["trace", "aggregator", "rank-agent/agent", "rank-agent/sources", "simulator"]),
    (
        "python",
        &[
            "trace",
            "kineto",
            "launch",
            "aggregator",
            "aggregator/model",
            "aggregator/diff",
            "rank-agent/agent",
            "rankscope",
        ],
    ),
    ("simulator", &["trace"]),
    ("fixtures", &["trace", "simulator"]),
    ("fixtures/drawn", &["trace", "aggregator/model", "simulator", "fixtures"]),
    (
        "fuzz",
        &[
            "trace",
            "rank-agent/sources",
            "rank-agent/inject",
            "kineto",
            "aggregator/model",
            "aggregator/formats",
            "aggregator/hang",
            "rank-agent/agent",
            "fixtures/drawn",
        ],
    ),
    ("tests/stand-in-cupti", &[]),
    ("tests/stand-in-disk", &[]),
    ("tests/stand-in-plugin", &[]),
    (
        "tests",
        &[
            "trace",
            "kernels",
            "launch",
            "rank-agent/recorder",
            "rank-agent/sources",
            "rank-agent/inject",
            "kineto",
            "aggregator",
            "aggregator/model",
            "aggregator/formats",
            "aggregator/findings",
            "aggregator/pipeline",
            "aggregator/report/timeline",
            "rank-agent",
            "rankscope",
            "simulator",
            "fixtures",
            "fuzz",
            "tests/stand-in-cupti",
            "tests/stand-in-disk",
            "tests/stand-in-plugin",
        ],
    ),
];

/// Crates that every crate may name as a dev-dependency.
pub const DEV_ONLY: &[&str] = &["simulator", "fixtures", "fixtures/drawn"];

/// Dev-dependencies that the tests of one crate need, although its code may not use them.
pub const DEV_OF_ONE: &[(&str, &str)] = &[
    ("aggregator/account", "aggregator/formats"),
    ("aggregator/account", "kineto"),
    ("aggregator/report/html", "aggregator/pipeline"),
];

/// Folders and files directly below `src`, by crate. The crate's root may import them all, and all may import `error`.
/// In a crate that is not listed, everything may import everything; it still has no component.
pub const FOLDERS: &[(&str, &[Room<'_>])] = &[
    (
        "kineto",
        &[
            ("bytes", &[]),
            ("columns", &["bytes"]),
            ("meaning", &["bytes", "columns"]),
            ("read", &["bytes", "columns", "meaning"]),
            ("write", &["bytes", "columns", "meaning", "read"]),
        ],
    ),
    // CUPTI and NCCL meet in the queue of communication kernels, which their caller hands to both.
    (
        "rank-agent/sources",
        &[
            ("comm_kernels", &[]),
            ("installed", &[]),
            ("cupti", &["comm_kernels", "installed"]),
            ("nccl", &["comm_kernels", "installed"]),
        ],
    ),
    ("rank-agent/agent", &[("console", &[]), ("fabric", &[]), ("exec", &["console", "fabric"])]),
];

/// Circles that are still there, as `(crate, its modules)`. No new one may come, and one that is gone leaves this list.
pub const CIRCLES: &[(&str, &str)] = &[];
