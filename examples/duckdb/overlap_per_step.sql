-- How much of the communication hides under compute, step by step?
-- The spread over the ranks beside the mean: one rank that hides nothing is a finding.
select step,
       count(*)                                                       as ranks,
       round(avg(wall_ns) / 1e6, 3)                                   as wall_ms,
       round(avg(comm_total_ns) / 1e6, 3)                             as comm_ms,
       round(avg(exposed_comm_ns) / 1e6, 3)                           as exposed_ms,
       round(100 * sum(overlap_ns) / nullif(sum(comm_total_ns), 0), 1) as overlap_pct,
       round(min(overlap_pct), 1)                                     as lowest_pct,
       arg_min(rank, overlap_pct)                                     as lowest_rank,
       round(max(overlap_pct), 1)                                     as highest_pct
from step_breakdown
group by step
order by step;
