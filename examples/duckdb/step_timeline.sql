-- What did every rank do, when, in the slowest step, on one clock?
-- Milliseconds since the first rank began that step. The ranges of the main thread and the collectives, in order.
-- Current directory: a run, analysed.
with slowest as (
    select step from 'analysis/step_breakdown.parquet' where step >= 0 group by step order by max(wall_ns) desc, step limit 1
), fit as (
    select rank, offset_ns, coalesce(drift_ppb, 0) as drift_ppb, origin_ns
    from 'analysis/clock_fit.parquet' where clock = 'host'
), rows_ as (
    select e.rank, e.kind, e.name, e.dur_ns,
           -- global = t + offset + drift·(t − origin)
           e.ts_ns + offset_ns + round(drift_ppb * 1e-9 * (e.ts_ns - origin_ns))::bigint as global_ns
    from 'events/*.parquet' e join fit using (rank) join slowest using (step)
    where e.device_id is null and (e.kind = 'user_annotation' or e.is_comm)
)
select round((global_ns - min(global_ns) over ()) / 1e6, 3) as at_ms,
       rank, kind, name,
       round(dur_ns / 1e6, 3) as dur_ms
from rows_
order by global_ns, rank;
