-- What did every rank do, when, in the slowest step, on one clock?
-- Milliseconds since the first rank began that step, give or take error_us. The ranges of the main thread and the
-- collectives, in order.
with slowest as (
    select step from step_breakdown group by step order by max(wall_ns) desc, step limit 1
), rows_ as (
    select rank, kind, name, dur_ns, global_ts_ns, global_error_ns
    from global_events join slowest using (step)
    where device_id is null and (kind = 'user_annotation' or is_comm)
)
select round((global_ts_ns - min(global_ts_ns) over ()) / 1e6, 3) as at_ms,
       rank, kind, name,
       round(dur_ns / 1e6, 3)                                     as dur_ms,
       round(global_error_ns / 1e3, 3)                            as error_us
from rows_
order by global_ts_ns, rank, dur_ns desc;
