-- Where does nothing run for longer than 100 µs, and what ran before and after?
-- Per host thread that computes, and per stream of a device. Communication does not count as running.
-- The twelve longest of each rank: who waits for another in every step has so many that theirs would hide all others.
with rows_ as (
    select rank, step, name, ts_ns, ts_ns + dur_ns as end_ns,
           case when device_id is null then 'thread ' || thread_id else 'stream ' || device_id || ':' || stream_id end as lane
    from events
    where kind in ('cpu_op', 'kernel', 'gpu_memcpy', 'gpu_memset') and not coalesce(is_comm, false)
      and name not ilike '%wait%' and not coalesce(open, false)
), ordered as (
    select *,
           -- The row that ended last so far, not simply the previous row: rows nest and overlap.
           max(end_ns) over before                as busy_until_ns,
           arg_max(name, end_ns) over before      as ran_before
    from rows_
    window before as (partition by rank, lane order by ts_ns, end_ns desc rows between unbounded preceding and 1 preceding)
)
select rank, lane, step,
       round((ts_ns - busy_until_ns) / 1e3, 1) as gap_us,
       ran_before, name as ran_after
from ordered
where ts_ns - busy_until_ns > 100000
qualify row_number() over (partition by rank order by ts_ns - busy_until_ns desc) <= 12
order by ts_ns - busy_until_ns desc;
