-- When, in UTC, did each rank's steps begin, and how well is that known?
-- To find what a host was doing then: join its kernel log, DCGM or SLURM records on `utc`, give or take error_us, with
--     from log l asof join marks m on m.host = l.host and m.utc <= l.time
-- UTC is the clock of the rank's host. How far that clock is from true UTC is not known.
with marks as (
    select e.rank, r.host, e.step, min(e.utc) as utc, max(e.utc_error_ns) as utc_error_ns
    from global_events_utc e
    join (select rank, any_value(host) as host from ranks group by rank) r using (rank)
    where e.step >= 0
    group by e.rank, r.host, e.step
)
select rank, host, step, utc, round(utc_error_ns / 1e3, 3) as error_us
from marks
order by utc, rank;
