//! The command lines of `exec` and `ctl`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use super::switch::{NcclDetail, TimeSchedule};
use crate::fabric::ping::INTERVAL;

/// The shortest time of `--keep`: the writer closes parts that hold rows of up to a second, and the newest ones stay.
const LEAST_KEPT: Duration = Duration::from_secs(10);

/// Record an unmodified CUDA/NCCL program on every rank
///
/// Put `rankscope exec` between your launcher and the program. The program keeps its standard streams, its signals and
/// its exit code.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXEC_EXAMPLES, allow_negative_numbers = true)]
pub struct ExecArguments {
    /// Directory for the run; it must be new or empty [default: a new name from the time of day]
    #[arg(short, long, value_name = "RUN")]
    pub(super) out: Option<PathBuf>,

    /// Address at which rank 0 listens for ranks of other hosts [default: from MASTER_ADDR and MASTER_PORT, or from SLURM's
    /// node list]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) rendezvous: Option<String>,

    /// Time to wait for the other ranks before the program starts; ranks that come later are recorded, but their clocks are
    /// not compared
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) join_timeout: u32,

    /// Interval between clock comparisons while the program runs; 0: compare only before and after it
    #[arg(long, value_name = "SECONDS", default_value_t = INTERVAL.as_secs() as u32)]
    pub(super) ping_every: u32,

    /// NCCL events to record
    #[arg(long, value_enum, default_value_t = NcclDetail::Channels)]
    pub(super) nccl_detail: NcclDetail,

    /// Record only these steps, as in torch.profiler.schedule: wait=1,warmup=2,active=5; repeat=1 and skip_first=0 may
    /// follow. The program marks its steps by NVTX ranges whose names begin with ProfilerStep
    #[arg(long, value_name = "SCHEDULE", conflicts_with_all = ["paused", "delay", "duration"])]
    pub(super) schedule: Option<recorder::Schedule>,

    /// Record nothing until `rankscope ctl start`
    #[arg(long, conflicts_with_all = ["delay", "duration"])]
    pub(super) paused: bool,

    /// Record nothing for this long after the program has started
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) delay: Option<f64>,

    /// Record for this long, from the start of the program or the end of the delay; the program goes on unrecorded
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) duration: Option<f64>,

    /// Limit for the bytes of rows of each recorded process; rows beyond it are counted and left out [default: none]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_bytes: Option<u64>,

    /// Keep only the rows of the newest 10m, 90s, 2h, … of each recorded process, at least 10s, for recording all the time [default:
    /// all]
    #[arg(long, value_name = "TIME", value_parser = kept)]
    pub(super) keep: Option<Duration>,

    /// Store the values of the program's arguments in the run, too, which all may read who may read the run [default: the program's
    /// name and the names of its options]
    #[arg(long)]
    pub(super) record_command: bool,

    /// Print errors only
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// The program and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

const EXEC_EXAMPLES: &str = "\
Examples:
  rankscope exec --out run -- python train.py
  mpirun -n 8 rankscope exec --out run -- python train.py
  torchrun --nproc-per-node 8 --no-python rankscope exec --out run -- python train.py
  rankscope exec --out run --delay 60 --duration 10 -- python train.py
  rankscope exec --out run --keep 10m -- python train.py
  rankscope exec --out run --paused -- python train.py
  rankscope ctl start --out run --duration 10       from another shell, while it runs
  rankscope analyze run

Environment: RANKSCOPE_TOKEN, equal on all ranks, is the secret of ranks on several hosts that do not share --out; \
RANKSCOPE_INJECT_LIB names librankscope_inject.so where it is not beside this program.

If ranks do not meet, the program runs and is recorded all the same; the run states whose clocks were not compared.

Exit codes: the program's; 128 + n if signal n ended it; 126 or 127 if it could not be started; 1 if the run could not be \
created; 2 usage.";

/// Start, stop or query the recording of a running `exec`
///
/// `ctl` reaches the ranks of this host; the job's other ranks follow them.
#[derive(Args, Clone, Debug)]
#[command(after_help = CTL_EXAMPLES)]
pub struct CtlArguments {
    /// Action
    #[arg(value_enum)]
    pub(super) action: Action,

    /// Directory of the run [default: the only run of this user on this host]
    #[arg(short, long, value_name = "RUN", conflicts_with = "pid")]
    pub(super) out: Option<PathBuf>,

    /// Process id of `exec` on any rank of the run
    #[arg(long, value_name = "PID")]
    pub(super) pid: Option<u32>,

    /// start: stop again after this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) duration: Option<f64>,

    /// start: NCCL events to record from now on [default: as before]
    #[arg(long, value_enum)]
    pub(super) nccl_detail: Option<NcclDetail>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

const CTL_EXAMPLES: &str = "\
Examples:
  rankscope exec --out run --paused -- python train.py      record nothing until `ctl start`
  rankscope ctl start --out run --duration 30
  rankscope ctl stop
  rankscope ctl status --json

Exit codes: 0 done; 1 no such run, or more than one; 2 usage.";

/// An action of `ctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Action {
    /// Record from now on
    Start,
    /// Record nothing from now on
    Stop,
    /// Print whether the ranks record
    Status,
}

impl ValueEnum for NcclDetail {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Coll => "Collectives and point-to-point operations",
            Self::Channels => "Also the time of each GPU channel",
            Self::Proxy => "Also each operation of NCCL's proxy thread",
        };
        Some(PossibleValue::new(self.as_str()).help(help))
    }
}

/// Parses a length of time in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds from 0 to 1e9".into()),
    }
}

/// Parses how long rows are kept. The newest parts stay, so a shorter time than the least would not be what is kept.
fn kept(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(keep) if keep >= LEAST_KEPT => Ok(keep),
        Ok(_) => Err(format!("it must be at least {} s", LEAST_KEPT.as_secs())),
        Err(error) => Err(format!("it must be a time such as 10m, 90s or 1h 30m: {error}")),
    }
}

impl ExecArguments {
    /// The schedule that `--delay` and `--duration` give.
    pub(super) fn time_schedule(&self) -> TimeSchedule {
        let length = |seconds: Option<f64>| seconds.map(Duration::from_secs_f64);
        let delay = length(self.delay).filter(|delay| !delay.is_zero());
        TimeSchedule { paused: self.paused, delay, duration: length(self.duration) }
    }

    /// Interval between clock comparisons; `None`: compare only before and after the program.
    pub(super) fn ping_every(&self) -> Option<Duration> {
        (self.ping_every > 0).then(|| Duration::from_secs(self.ping_every.into()))
    }
}
