-- In which range does a rank spend more time of its own than the others do?
-- Self time of the ranges, less the median rank's, per step: the raw material of a verdict, without any clock.
with ranges as (
    select rank, id, step, name, dur_ns from events
    where kind = 'user_annotation' and step >= 0 and name not like 'ProfilerStep#%' and not coalesce(open, false)
), children as (
    select rank, parent_id as id, sum(dur_ns)::bigint as children_ns from events
    where parent_id is not null and device_id is null and not coalesce(open, false) group by all
), own as (
    select rank, step, name, sum(dur_ns - coalesce(children_ns, 0))::bigint as self_ns
    from ranges left join children using (rank, id) group by all
), per_rank as (
    select rank, name, median(self_ns) as self_ns from own group by all
)
select name, rank,
       round(self_ns / 1e6, 3)                                                      as self_ms,
       round((self_ns - quantile_disc(self_ns, 0.5) over (partition by name)) / 1e6, 3) as excess_ms
from per_rank
order by excess_ms desc, name, rank
limit 20;
