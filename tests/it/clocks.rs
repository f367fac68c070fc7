//! One clock for all ranks: a bent, a shifted and a differently rooted clock change the fit and nothing else.

use std::path::Path;
use std::process::Command;

use trace::{
    BucketTimingRow, ClockFitRow, ClockSampleRow, CollectiveRow, CommRow, EventRow, InstanceRow, MemoryRow, Row, Run,
    ShardMeta, StepBreakdownRow, StepRow, StragglerRow, WaitRow, batch_from_rows, write_shard,
};

use crate::damage::forget_list;
use crate::support::{
    RANK_AGENT, SMALL_MODEL, analyze, finish, have_mpirun, mpirun, one_job_at_a_time, scratch, skipped, sound_run,
    train,
};
use crate::tables::{analysis, open};

/// The fit of one rank's host clock.
fn fit(run: &Path, rank: i32) -> ClockFitRow {
    let fits = analysis::<ClockFitRow>(run);
    fits.into_iter().find(|f| f.rank == rank && &*f.clock == "host").unwrap()
}

fn assert_no_violations(run: &Path) {
    assert!(analysis::<ClockFitRow>(run).iter().all(|f| f.violations == 0));
}

/// Invariant (clocks): A clock that is shifted or bent is fitted within its bound.
#[test]
fn a_bent_clock_is_fitted_inside_its_bound() {
    if !have_mpirun("a_bent_clock_is_fitted_inside_its_bound") {
        return;
    }
    let path = scratch("bent").join("run");
    train(3, &path, &["--inject", "clock:rank=1,offset_ms=250,drift_ppm=40"]).expect_code(0);
    analyze(&path, &[], 0);
    assert_no_violations(&path);
    let fit = fit(&path, 1);
    assert_eq!(&*fit.method, "ping");
    let run = open(&path);
    let truth = Bend::of(&run.shards(1, "events")[0].meta.clock_domain);
    assert_eq!((truth.offset_ns, truth.drift_ppb), (250_000_000, 40_000));
    let rows = run.rows::<EventRow>(1).0;
    for t in [rows[0].ts_ns, rows[rows.len() / 2].ts_ns, rows[rows.len() - 1].ts_ns] {
        // Rank 0's clock is the host's own, and so is the truth.
        let fitted =
            t + fit.offset_ns + (fit.drift_ppb.unwrap_or(0.0) * 1e-9 * (t - fit.origin_ns) as f64).round() as i64;
        let error = fitted - truth.undo(t);
        assert!(error.abs() <= fit.bound_ns.unwrap(), "{error} ns beside the truth, {fit:?}");
    }
}

/// How a clock was bent, as its domain says: `… bent +250000000 ns +40000 ppb from ORIGIN`.
struct Bend {
    offset_ns: i64,
    drift_ppb: i64,
    origin_ns: i64,
}

impl Bend {
    fn of(domain: &str) -> Self {
        let words: Vec<&str> = domain.split_once(" bent ").unwrap().1.split(' ').collect();
        let number = |at: usize| words[at].parse().unwrap();
        Self { offset_ns: number(0), drift_ppb: number(2), origin_ns: number(5) }
    }

    /// The host's time at which the bent clock says `t_ns`.
    fn undo(&self, t_ns: i64) -> i64 {
        // bent = raw + offset + drift·(raw − origin)
        let since = (t_ns - self.offset_ns - self.origin_ns) as f64 / (1.0 + self.drift_ppb as f64 * 1e-9);
        self.origin_ns + since.round() as i64
    }
}

/// Invariant (clocks): A clock that is shifted or bent is fitted within its bound.
///
/// A real clock shift, not an injected one: rank 1 lives in another time namespace.
#[test]
fn a_time_namespace_is_another_clock() {
    let what = "a_time_namespace_is_another_clock";
    if !have_mpirun(what) {
        return;
    }
    let probe = Command::new("unshare").args(["--time", "--monotonic", "5", "true"]).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        skipped(what, "this kernel or user may not make time namespaces (unshare --time)");
        return;
    }
    let path = scratch("time_namespace").join("run");
    let job = mpirun(1);
    let turn = one_job_at_a_time();
    let mut command = Command::new(job.get_program());
    command.args(job.get_args()).envs(job.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let program = |command: &mut Command| {
        command.arg(RANK_AGENT).arg("--out").arg(&path).args(SMALL_MODEL);
    };
    program(&mut command);
    command.args([":", "-n", "1", "unshare", "--time", "--monotonic", "5"]);
    program(&mut command);
    finish(&mut command).expect_code(0);
    drop(turn);
    analyze(&path, &[], 0);
    assert_no_violations(&path);
    let fit = fit(&path, 1);
    assert_eq!(&*fit.method, "ping");
    let bound = fit.bound_ns.unwrap();
    assert!((fit.offset_ns + 5_000_000_000).abs() <= bound, "offset {} ± {bound}", fit.offset_ns);
}

const SHIFT_NS: i64 = 7_123_456_789;

/// Rewrites one rank's rows of a table, and its shards' metadata.
fn rewrite<R: Row>(run: &Run, rank: i32, meta: impl Fn(&mut ShardMeta), mut change: impl FnMut(&mut R)) {
    let table = R::table();
    for shard in run.shards(rank, table.name) {
        let mut rows = Vec::new();
        let read = shard.read(&table, None, |batch| -> Result<(), trace::Error> {
            rows.extend(trace::rows_from_batch::<R>(batch)?);
            Ok(())
        });
        read.unwrap();
        rows.iter_mut().for_each(&mut change);
        let mut changed = (*shard.meta).clone();
        meta(&mut changed);
        // A shard is never written over.
        std::fs::remove_file(&shard.path).unwrap();
        write_shard(&run.path, &table, &changed, shard.part, &[batch_from_rows(&rows).unwrap()]).unwrap();
    }
}

fn shift(time: &mut Option<i64>) {
    *time = time.map(|t| t + SHIFT_NS);
}

/// Shifts everything that rank 1 ever read from its clock.
fn shift_rank_1(path: &Path) {
    [0, 1].into_iter().for_each(|rank| forget_list(path, rank));
    let run = open(path);
    let domain = |meta: &mut ShardMeta| meta.clock_domain.push_str(" shifted");
    rewrite::<EventRow>(&run, 1, domain, |e| e.ts_ns += SHIFT_NS);
    rewrite::<MemoryRow>(&run, 1, domain, |m| m.ts_ns += SHIFT_NS);
    rewrite::<StepRow>(&run, 1, domain, |s| {
        s.start_ns += SHIFT_NS;
        s.end_ns += SHIFT_NS;
    });
    rewrite::<CollectiveRow>(&run, 1, domain, |c| {
        [&mut c.ready_ns, &mut c.enqueue_ns, &mut c.start_ns, &mut c.end_ns].into_iter().for_each(shift);
    });
    rewrite::<CommRow>(&run, 1, domain, |c| [&mut c.created_ns, &mut c.destroyed_ns].into_iter().for_each(shift));
    rewrite::<ClockSampleRow>(&run, 1, domain, |s| {
        s.local_ns += SHIFT_NS;
        s.offset_ns -= SHIFT_NS;
    });
    rewrite::<ClockSampleRow>(
        &run,
        0,
        |_| {},
        |s| {
            if s.peer_rank == Some(1) {
                s.remote_ns += SHIFT_NS;
                s.offset_ns += SHIFT_NS;
            }
        },
    );
    rewrite::<trace::RankRow>(&run, 1, domain, |r| r.clock_domain = format!("{} shifted", r.clock_domain).into());
    rewrite::<trace::CounterRow>(&run, 1, domain, |_| {});
    rewrite::<trace::BucketRow>(&run, 1, domain, |_| {});
    rewrite::<trace::DeviceRow>(&run, 1, domain, |_| {});
    rewrite::<trace::FlowRow>(&run, 1, domain, |_| {});
}

/// Invariant (clocks): A shifted clock shifts its fit, and changes no other number beyond the stated errors.
#[test]
fn shifting_a_clock_shifts_its_fit_and_nothing_else() {
    let (Some(plain), Some(shifted)) = (sound_run("unshifted"), sound_run("shifted")) else { return };
    shift_rank_1(&shifted);
    analyze(&plain, &[], 0);
    analyze(&shifted, &[], 0);
    assert_no_violations(&shifted);
    let (before, after) = (fit(&plain, 1), fit(&shifted, 1));
    assert_eq!(&*after.method, "ping");
    let bound = after.bound_ns.unwrap().max(before.bound_ns.unwrap());
    let moved = after.offset_ns - before.offset_ns + SHIFT_NS;
    assert!(moved.abs() <= 2 * bound, "the fit moved by {moved} ns more than the clock, bound {bound}");

    // What needs one rank's clock only is the same to the ns.
    assert_eq!(analysis::<StepBreakdownRow>(&shifted), analysis::<StepBreakdownRow>(&plain));
    assert_eq!(analysis::<StragglerRow>(&shifted).len(), 2);
    for (a, b) in analysis::<StragglerRow>(&shifted).iter().zip(&analysis::<StragglerRow>(&plain)) {
        assert_eq!((a.own_excess_ns, &a.verdict, a.z), (b.own_excess_ns, &b.verdict, b.z));
    }
    // What compares ranks moves by no more than the stated errors.
    let tolerance = 4 * bound;
    let close = |what: &str, a: i64, b: i64| assert!((a - b).abs() <= tolerance, "{what}: {a} and {b}, ±{tolerance}");
    let (a, b) = (analysis::<InstanceRow>(&shifted), analysis::<InstanceRow>(&plain));
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(&b) {
        assert_eq!((a.comm_id, a.seq, a.step, a.bucket, a.complete), (b.comm_id, b.seq, b.step, b.bucket, b.complete));
        close("skew_ns", a.skew_ns, b.skew_ns);
    }
    for (a, b) in analysis::<WaitRow>(&shifted).iter().zip(&analysis::<WaitRow>(&plain)) {
        close("wait_ns", a.wait_ns, b.wait_ns);
        assert_eq!((a.wait_clockfree_ns, a.own_excess_ns), (b.wait_clockfree_ns, b.own_excess_ns));
    }
    for (a, b) in analysis::<BucketTimingRow>(&shifted).iter().zip(&analysis::<BucketTimingRow>(&plain)) {
        assert_eq!((a.exposed_ns, a.queue_ns), (b.exposed_ns, b.queue_ns));
    }
}
