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
    ("aggregator", &["trace", "kineto", "launch"]),
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
    ("rankscope", &["trace", "aggregator", "rank-agent/agent", "fixtures"]),
    ("python", &["trace", "kineto", "launch", "aggregator", "rank-agent/agent", "rankscope"]),
    ("fixtures", &["trace"]),
    ("fuzz", &["trace", "rank-agent/sources", "rank-agent/inject", "kineto", "aggregator", "rank-agent/agent"]),
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
            "rank-agent",
            "rankscope",
            "fixtures",
            "tests/stand-in-cupti",
            "tests/stand-in-disk",
            "tests/stand-in-plugin",
        ],
    ),
];

/// Crates that every crate may name as a dev-dependency.
pub const DEV_ONLY: &[&str] = &["fixtures"];

/// Folders and files directly below `src`, by crate. The crate's root may import them all, and all may import `error`.
/// In a crate that is not listed, everything may import everything; it still has no component.
pub const FOLDERS: &[(&str, &[Room<'_>])] = &[
    (
        "aggregator",
        &[
            ("base", &[]),
            ("model", &["base"]),
            ("ingest", &["base", "model"]),
            ("align", &["base", "model", "ingest"]),
            ("measure", &["base", "model", "ingest", "align"]),
            ("parts", &["base", "model", "ingest", "align", "measure"]),
            ("judge", &["base", "model", "ingest", "align", "measure", "parts"]),
            ("compare", &["base", "model", "ingest", "align", "measure", "parts", "judge"]),
            ("torch", &["base", "model", "ingest", "align", "measure", "parts", "judge"]),
            ("what_if", &["base", "model", "ingest", "align", "measure", "parts", "judge"]),
            ("watch", &["base", "model", "ingest", "align", "measure", "parts", "judge"]),
            ("hang", &["base", "model", "ingest", "align", "measure", "judge"]),
            (
                "render",
                &[
                    "base", "model", "ingest", "align", "measure", "parts", "judge", "compare", "torch", "what_if",
                    "watch", "hang",
                ],
            ),
            (
                "cli",
                &[
                    "base", "model", "ingest", "align", "measure", "parts", "judge", "compare", "torch", "what_if",
                    "watch", "hang", "render",
                ],
            ),
            // A file of the command, beside the library: it alone needs MPI.
            ("messages", &[]),
        ],
    ),
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
    ("rank-agent/sources", &[("comm_kernels", &[]), ("cupti", &["comm_kernels"]), ("nccl", &["comm_kernels"])]),
    ("rank-agent/agent", &[("console", &[]), ("fabric", &[]), ("exec", &["console", "fabric"])]),
];
