-- How fast is each shape of matrix multiplication, and how much does its speed vary over the ranks?
-- An operator of a device takes the time of the kernels that it launched, not that of the launch on the host.
-- `max_flops_per_byte` is an upper bound, from the least bytes that a call moves. Below the ridge of the device it is limited by
-- memory (unless the caches held its inputs), else likely by arithmetic; null: bytes or peak rates are unknown.
with on_device as (
    select rank, external_id, sum(dur_ns) as device_ns from events
    where kind = 'kernel' and external_id is not null
    group by rank, external_id
), gemms as (
    select e.*, case when e.kind = 'kernel' then e.dur_ns else coalesce(d.device_ns, e.dur_ns) end as work_ns
    from events e left join on_device d using (rank, external_id)
    where e.flops > 0 and not coalesce(e.open, false) and regexp_matches(e.name, '(gemm|matmul|mm\b|linear)', 'i')
), shapes as (
    select g.name, input_dims, count(*) as calls, median(work_ns) as median_ns, quantile_cont(work_ns, 0.95) as p95_ns,
           sum(work_ns) as total_ns, sum(g.flops) / sum(work_ns) as flops_per_ns,
           sum(g.flops) / sum(coalesce(g.bytes, g.min_bytes)) as intensity,
           min(ridge_flops_per_byte) as lowest_ridge, max(ridge_flops_per_byte) as highest_ridge,
           count(distinct g.rank) as ranks
    from gemms g left join op_stats o on o.rank = g.rank and o.name = g.name and o.device_id is null
    where work_ns > 0
    group by g.name, input_dims
)
select name, input_dims, calls,
       round(median_ns / 1e3, 1)                                  as median_us,
       round(p95_ns / 1e3, 1)                                     as p95_us,
       round(flops_per_ns, 2)                                     as gflops_per_s,
       round(intensity, 1)                                        as max_flops_per_byte,
       case when intensity < lowest_ridge then 'memory'
            when intensity >= highest_ridge then 'compute' end    as bound,
       ranks
from shapes
order by total_ns desc;
