-- How fast is each shape of matrix multiplication, and how much does its speed vary over the ranks?
-- An operator of a device takes the time of the kernels that it launched, not that of the launch on the host.
with on_device as (
    select rank, external_id, sum(dur_ns) as device_ns from events
    where kind = 'kernel' and external_id is not null
    group by rank, external_id
), gemms as (
    select e.*, case when e.kind = 'kernel' then e.dur_ns else coalesce(d.device_ns, e.dur_ns) end as work_ns
    from events e left join on_device d using (rank, external_id)
    where e.flops > 0 and not coalesce(e.open, false) and regexp_matches(e.name, '(gemm|matmul|mm\b|linear)', 'i')
)
select name, input_dims,
       count(*)                                                   as calls,
       round(median(work_ns) / 1e3, 1)                            as median_us,
       round(quantile_cont(work_ns, 0.95) / 1e3, 1)               as p95_us,
       round(sum(flops) / sum(work_ns), 2)                        as gflops_per_s,
       count(distinct rank)                                       as ranks
from gemms
where work_ns > 0
group by name, input_dims
order by sum(work_ns) desc;
