-- Which kernels and operations take the most time, and is one rank slower at them than the others?
-- Self time: without the time of enclosed rows. slowest_vs_median: the slowest rank's mean over the median rank's.
with work as (
    select 'kernel' as where_, rank, name, calls, self_ns, mean_ns, flops from kernel_stats
    union all
    select 'host', rank, name, calls, self_ns, mean_ns, flops from op_stats
)
select where_, name,
       sum(calls)::bigint                                            as calls,
       round(sum(self_ns) / 1e6, 3)                                  as self_ms,
       round(100 * sum(self_ns) / sum(sum(self_ns)) over (partition by where_), 1) as share_pct,
       round(avg(mean_ns) / 1e3, 1)                                  as mean_us,
       round(sum(flops) / nullif(sum(self_ns), 0), 1)                as gflops_per_s,
       arg_max(rank, mean_ns)                                        as slowest_rank,
       round(max(mean_ns) / nullif(median(mean_ns), 0), 2)           as slowest_vs_median
from work
group by where_, name
order by sum(self_ns) desc
limit 25;
