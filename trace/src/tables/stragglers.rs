//! The tables that the aggregator writes about ranks that make others wait.

use crate::words::{LostPart, Reason, StandsOn, Verdict};
use crate::{Text, Word};

tables! {
    straggler_list uses $, by Aggregator;

    /// One row per rank: whether it made the others wait, and by how much. Times are per step, over all steps, with and
    /// without collectives. By rank.
    stragglers: StragglerRow / StragglerBuilder / StragglerView; {
        /// Global rank.
        rank: i32,
        /// Host name; null if unknown.
        host: Option<Text>,
        /// Process id; null if unknown.
        pid: Option<i64>,
        /// Number of the device that ran the rank's work, as the process sees it; null without device work, or if there are several.
        device_id: Option<i64>,
        /// Model of that device.
        device_name: Option<Text>,
        /// Universal id (UUID) of that device.
        device_uuid: Option<Text>,
        /// File of the trace; for a run, its files of `events`.
        file: Option<Text>,
        /// Number of steps in which the rank was compared with others.
        steps: i32,
        /// Number of steps in which the rank arrived last at more collectives than any other rank.
        steps_last: i32,
        /// Own work between collectives, above the lower median of the ranks; the median over steps, or over the
        /// `delayed_steps`.
        own_excess_ns: i64,
        /// Lower end of the 95 % interval of `own_excess_ns` (order statistics over steps); null with too few steps.
        own_excess_low_ns: Option<i64>,
        /// Upper end of the 95 % interval of `own_excess_ns`; null with too few steps.
        own_excess_high_ns: Option<i64>,
        /// Time by which a step would be shorter, on average, if this rank alone worked as a typical rank does, by replay. At
        /// most the mean of its positive excesses; if the verdict stands on a range, at most the excess of all ranges that stand
        /// out. 0 for a cause whose delay other causes hide.
        step_delay_ns: i64,
        /// Lower end of the delay's 95 % interval; null if `stands_on` is null, or no rank is left to be compared with.
        step_delay_low_ns: Option<i64>,
        /// Upper end of that interval.
        step_delay_high_ns: Option<i64>,
        /// Waits of other ranks that are charged to this rank, per step, summed over the ranks.
        caused_wait_ns: i64,
        /// Part of the rank's lateness that other ranks caused, per step.
        inherited_ns: i64,
        /// Time that the rank waited for others, per step.
        suffered_wait_ns: i64,
        /// Distance of the own excess from that of the other ranks, in standard errors of a median over steps; null if
        /// the others do not vary.
        z: Option<f64>,
        /// Share of the steps that show the excess, from 0 to 1.
        persistence: Option<f64>,
        /// Number of steps in which the rank is late, if it is late in some only and the verdict stands on these.
        delayed_steps: Option<i32>,
        /// Number of steps from one of them to the next; null if they have no period.
        period_steps: Option<i32>,
        /// The first step of that period.
        period_first_step: Option<i32>,
        /// Time of the run / time of the run with this rank's own work replaced by the lower median's. Null without collectives;
        /// and in a job of so many ranks that not all can be replayed, for those with the least own work.
        slowdown: Option<f64>,
        /// Verdict: `cause`, `victim`, `ok` or `undecided`.
        verdict: Word<Verdict>,
        /// For an `undecided` rank: what a cause needs and this rank lacks.
        doubt: Option<Text>,
        /// Work that takes longer: `compute`, `device`, `host`, `input`, `network` or `waiting`. Null if `stands_on` is null,
        /// or if no rank recorded operators or device work.
        reason: Option<Word<Reason>>,
        /// Range of the host that holds the excess. A Python frame that fills a named range counts as that range. Null with
        /// an `evidence_excess_ns`: outside of all recorded ranges. If the largest cause stands on a range, ranks without
        /// evidence of their own are measured in the same range.
        evidence_range: Option<Text>,
        /// The user's Python function, as `train.py(11): load`, that is the innermost one for more than half of that range's time. Null
        /// without recorded stacks, and for ranks without evidence of their own.
        evidence_code: Option<Text>,
        /// Time in that range, or in `transfers`, above that of the other ranks or communicators, per step.
        evidence_excess_ns: Option<i64>,
        /// Distance of that range's excess from the same range on the other ranks, in standard errors of a median over
        /// steps.
        evidence_z: Option<f64>,
        /// Share of the steps that show at least half of that range's excess, from 0 to 1.
        evidence_persistence: Option<f64>,
        /// Quantity in which the rank stands out: `range` (see `evidence_z`), `stretch`, all own work between collectives (see
        /// `z`), `steps`, the same in the `delayed_steps`, or `transfers`, the time from the last arrival at collectives until
        /// the rank leaves. Null for other ranks. With the verdict `ok`: it lengthens the step by less than 1 %.
        stands_on: Option<Word<StandsOn>>,
        /// Communicator whose collectives are slow; all its ranks are causes, together. Null if the rank alone is slow.
        slow_comm_id: Option<i64>,
        /// The evidence in a sentence.
        evidence: Option<Text>,
    }

    /// The account of lost time: one row per part and step, and of a part that ranks or communicators take, one for each of them. The rows
    /// of a step sum to its length. A part is a difference of two replays, so it may be negative. Empty without rows that say what hosts
    /// waited for, and for one rank. By part, rank and step.
    lost_time: LostTimeRow / LostTimeBuilder / LostTimeView; {
        /// `work` of the busiest rank, `dependencies` (launches, bubbles, waits for other ranks' work), `transfer` that nothing hides,
        /// `stages` that work longer than others, `longer_steps` (on all ranks), `line` (what `lost_time_lines` names), or `variation`
        /// (lost to ranks of which none stands out).
        part: Word<LostPart>,
        /// Of a `line`, its number in `lost_time_lines`.
        line: Option<i32>,
        /// Of a `line`, the global rank, with an equal share of what the line takes.
        rank: Option<i32>,
        /// Of a `line`, the communicator whose transfers are slow.
        comm_id: Option<i64>,
        /// Training step.
        step: i32,
        /// Time.
        ns: i64,
    }

    /// What takes time: one row per line and rank or communicator. A line has all ranks of a stage, or communicators of a kind, that take
    /// time in the same steps. Times are per step. By line and rank.
    lost_time_lines: LostTimeLineRow / LostTimeLineBuilder / LostTimeLineView, listed |_| true; {
        /// Number of the line.
        line: i32,
        /// Global rank; null if transfers of a communicator are slow.
        rank: Option<i32>,
        /// Communicator whose transfers are slow.
        comm_id: Option<i64>,
        /// When it takes time: `every` step, `ramp` (more with each step), `begins`, `ends`, `on_and_off`, `periodic` or `single` steps.
        pattern: Text,
        /// Number of steps in which it does.
        steps: i32,
        /// Of a `periodic` line, the number of steps from one to the next.
        period_steps: Option<i32>,
        /// The first of these steps.
        first_step: Option<i32>,
        /// What mending this rank or communicator alone saves: the mean over steps, of lasting lines without the first and the last
        /// step. Null if too many take time together to replay each.
        alone_ns: Option<i64>,
        /// What mending all of the line saves.
        together_ns: i64,
        /// Lower end of the 95 % interval of that, with the error of the replay.
        together_low_ns: i64,
        /// Upper end.
        together_high_ns: i64,
        /// `cause` if the lower end is above 2 % of a step, else `undecided` if the upper end is, else `ok`.
        verdict: Word<Verdict>,
    }

    /// One row per rank and compared step: the quantities of `stragglers`, step by step. By rank and step.
    straggler_steps: StragglerStepRow / StragglerStepBuilder / StragglerStepView; {
        /// Global rank.
        rank: i32,
        /// Training step.
        step: i32,
        /// Own work between collectives, above the lower median of the ranks; null if the rank was not compared.
        own_excess_ns: Option<i64>,
        /// Range of the host in which the rank was measured, as in `stragglers`.
        evidence_range: Option<Text>,
        /// Time in that range above the lower median of the other ranks; null if no verdict stands on a range.
        evidence_excess_ns: Option<i64>,
    }

    /// One row per group of ranks: the ranks of a host, of a device model, or of one place in the job's parallelism. Of each kind of
    /// group, the one with the largest excess first. Empty with a single group of each kind.
    rank_groups: RankGroupRow / RankGroupBuilder / RankGroupView, listed |_| true; {
        /// Kind of group: `host`, `device_model`, `stage` (of a pipeline), or the purpose of the communicators in which the ranks
        /// have the same place: `data`, `tensor`, `context`, `expert`, or their description or size; or else what the names of all files
        /// say, as `dp0_tp1` does.
        kind: Text,
        /// Name of the host or device model; number of the stage or place, from 0.
        name: Text,
        /// Number of ranks.
        ranks: i32,
        /// Mean length of a step over its ranks. The next columns sum to it.
        step_ns: i64,
        /// Compute without communication, as in `step_breakdown`.
        compute_ns: i64,
        /// Communication hidden by compute.
        overlap_ns: i64,
        /// Communication that no compute hides.
        exposed_comm_ns: i64,
        /// Copies and fills alone.
        memory_ns: i64,
        /// The rest of the step.
        idle_ns: i64,
        /// What of `exposed_comm_ns` is waiting for other ranks, over the ranks and steps where that is known; null where it is not.
        exposed_wait_ns: Option<i64>,
        /// Median of `own_excess_ns` over its ranks; null if none was compared.
        own_excess_ns: Option<i64>,
        /// Its rank with the largest delay of a step, or else the largest excess; null if none was compared.
        worst_rank: Option<i32>,
        /// `own_excess_ns` of that rank.
        worst_excess_ns: Option<i64>,
        /// `step_delay_ns` of that rank.
        worst_delay_ns: Option<i64>,
        /// Number of its ranks that are causes.
        causes: i32,
    }
}
