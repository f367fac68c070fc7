//! The module `rankscope._rankscope`: the analysis for Python. Tables leave through Arrow's C data interface, small values as
//! JSON; the Python files of the package give them their shape.
//!
//! ```text
//!  rankscope/*.py ── options as words ──► calls.rs ──► work.rs: a thread without the GIL ──► aggregator::cli::library
//!        ▲                                                  │ signals and progress, every 25 ms
//!        └── tables.rs: capsules of Arrow ◄── analysis.rs, run.rs, recorded.rs ◄┘
//! ```

mod agent;
mod analysis;
mod calls;
mod changes;
mod errors;
mod hta_window;
mod native_thread;
mod recorded;
mod run;
mod tables;
mod work;

use pyo3::prelude::pymodule;

/// What the Python files of the package import.
#[pymodule]
mod _rankscope {
    #[pymodule_export]
    use crate::agent::{NativeAgent, NativeWindowWriter};
    #[pymodule_export]
    use crate::analysis::NativeAnalysis;
    #[pymodule_export]
    use crate::calls::{
        analyze, command, diff, hang, ingest, map_share, reduce, tables_of_analysis, tables_of_runs, version, what_if,
    };
    #[pymodule_export]
    use crate::native_thread::NativeThread;
    #[pymodule_export]
    use crate::recorded::NativeRecorded;
    #[pymodule_export]
    use crate::run::NativeRun;
    #[pymodule_export]
    use crate::tables::NativeTable;
}
