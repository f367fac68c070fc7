-- Who waited, for whom, and how long a step?
-- One line per pair: `rank` was there, `last_rank` was not yet. Only waits above the clock error count.
with steps as (select count(distinct step) as n from step_breakdown)
select w.rank, i.last_rank,
       count(*)                                       as collectives,
       round(sum(w.wait_ns) / 1e6 / any_value(n), 3)  as waited_ms_per_step,
       round(max(w.wait_ns) / 1e6, 3)                 as longest_ms
from collective_waits w
join collective_instances i using (instance)
cross join steps
where w.rank <> i.last_rank and w.wait_ns > coalesce(i.error_ns, 0) and i.step >= 0
group by w.rank, i.last_rank
order by waited_ms_per_step desc, w.rank
limit 30;
