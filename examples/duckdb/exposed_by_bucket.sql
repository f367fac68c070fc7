-- Which gradient buckets does the step wait for, and why: in the queue, waiting for a rank, or moving bytes?
-- Means over steps and ranks. Bucket 0 is reduced first; the last one has the least compute left to hide under.
select bucket,
       round(max(bytes) / 1048576.0, 2)    as mib,
       count(*)                            as all_reduces,
       round(avg(queue_ns) / 1e6, 3)       as queue_ms,
       round(avg(wait_ns) / 1e6, 3)        as wait_ms,
       round(avg(transfer_ns) / 1e6, 3)    as transfer_ms,
       round(avg(exposed_ns) / 1e6, 3)     as exposed_ms,
       round(avg(hidden_pct), 1)           as hidden_pct
from bucket_timing
group by bucket
order by bucket;
