-- Does the loss fall, and how steady is the step time?
-- spread: slowest over fastest rank's step of the same number.
select step, any_value(phase)                                      as phase,
       count(*)                                                    as ranks,
       round(avg(loss), 4)                                         as mean_loss,
       round(median(end_ns - start_ns) / 1e6, 3)                   as median_ms,
       round(max(end_ns - start_ns) / 1e6, 3)                      as slowest_ms,
       arg_max(rank, end_ns - start_ns)                            as slowest_rank,
       round(max(end_ns - start_ns) / min(end_ns - start_ns), 2)   as spread
from steps
group by step
order by step;
