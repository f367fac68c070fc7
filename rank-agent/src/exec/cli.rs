//! The command line of `rank-agent exec`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::switch::TimeSchedule;
use crate::ctl::seconds;

/// Records an unmodified CUDA/NCCL program on every rank: put it between your launcher and the program.
///
/// The program keeps its standard streams, its signals and its exit code.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExecArguments {
    /// Directory for the run; it must be new or empty [default: a new name from the time of day]
    #[arg(long, value_name = "RUN")]
    pub out: Option<PathBuf>,

    /// Where rank 0 is met [default: from MASTER_ADDR and MASTER_PORT, SLURM's node list, or the loopback if all
    /// ranks are on this host]
    #[arg(long, value_name = "HOST:PORT")]
    pub rendezvous: Option<String>,

    /// How long to wait for the other ranks before the program starts
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub join_timeout: u32,

    /// Clocks are compared before and after the program, and this often meanwhile; 0: not meanwhile
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub ping_every: u32,

    /// How much NCCL is asked for: collectives, also the time on each GPU channel, also each proxy operation
    #[arg(long, value_enum, default_value_t = NcclDetail::Channels)]
    pub nccl_detail: NcclDetail,

    /// Record only these of the steps that the program marks by NVTX ranges that begin with ProfilerStep, as in
    /// torch.profiler.schedule: wait=1,warmup=2,active=5; repeat=1 and skip_first=0 may follow
    #[arg(long, value_name = "SCHEDULE", conflicts_with_all = ["delay", "duration"])]
    pub schedule: Option<recorder::Schedule>,

    /// Record nothing for this long after the program has started
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub delay: Option<f64>,

    /// Record for this long, from the start of the program or the end of the delay; the program goes on unrecorded
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// Bytes of rows that each recorded process may write; what comes beyond is counted and left out [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_bytes: Option<u64>,

    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,

    /// The program, and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  rank-agent exec --out run -- python train.py
  mpirun -n 8 rank-agent exec --out run -- python train.py
  torchrun --nproc-per-node 8 --no-python rank-agent exec --out run -- python train.py
  rank-agent exec --out run --delay 60 --duration 10 -- python train.py
  rank-agent ctl start --out run --duration 10      from another shell, while it runs
  aggregator analyze run

Environment: RANKSCOPE_TOKEN, equal on all ranks, keeps strangers from joining; RANKSCOPE_INJECT_LIB names
librankscope_inject.so where it is not beside this program.

Exit codes: the program's; 128 + n if signal n ended it; 126 or 127 if it could not be started; 1 if the ranks could
not meet, 2 usage.";

/// How much of NCCL is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NcclDetail {
    /// Collectives and point-to-point.
    Coll,
    /// And each channel's time on the GPU.
    Channels,
    /// And each operation of the proxy.
    Proxy,
}

impl NcclDetail {
    /// The detail of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Coll, Self::Channels, Self::Proxy].into_iter().find(|detail| detail.as_str() == word)
    }

    /// Its word in `RANKSCOPE_NCCL_DETAIL`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Coll => "coll",
            Self::Channels => "channels",
            Self::Proxy => "proxy",
        }
    }
}

impl ExecArguments {
    /// When to record.
    pub fn time_schedule(&self) -> TimeSchedule {
        let length = |seconds: Option<f64>| seconds.map(Duration::from_secs_f64);
        TimeSchedule { delay: length(self.delay).filter(|delay| !delay.is_zero()), duration: length(self.duration) }
    }

    /// Time between comparisons of clocks; `None`: only before and after.
    pub fn ping_every(&self) -> Option<Duration> {
        (self.ping_every > 0).then(|| Duration::from_secs(self.ping_every.into()))
    }
}
