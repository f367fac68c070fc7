-- How fast is each shape of matrix multiplication, and how much does its speed vary over the ranks?
select name, input_dims,
       count(*)                                                   as calls,
       round(median(dur_ns) / 1e3, 1)                             as median_us,
       round(quantile_cont(dur_ns, 0.95) / 1e3, 1)                as p95_us,
       round(sum(flops) / sum(dur_ns), 2)                         as gflops_per_s,
       count(distinct rank)                                       as ranks
from events
where flops > 0 and dur_ns > 0 and not coalesce(open, false) and regexp_matches(name, '(gemm|matmul|addmm|\bmm\b|linear)', 'i')
group by name, input_dims
order by sum(dur_ns) desc;
