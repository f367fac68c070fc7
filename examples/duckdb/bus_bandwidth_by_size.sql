-- What bus bandwidth do collectives of each size reach, with and without the wait for the last rank?
-- busbw as nccl-tests defines it. Without a transfer time (inside the clock error, incomplete) there is no bandwidth.
select op, bytes,
       any_value(ranks_expected)                      as ranks,
       count(*)                                       as collectives,
       count(busbw_gbs)                               as with_bandwidth,
       round(median(transfer_ns) / 1e6, 3)            as transfer_ms,
       round(median(algbw_gbs), 6)                    as algbw_gbs,
       round(median(busbw_gbs), 6)                    as busbw_gbs,
       round(median(busbw_incl_wait_gbs), 6)          as busbw_incl_wait_gbs,
       round(median(skew_ns) / 1e6, 3)                as skew_ms
from collective_instances
where complete
group by op, bytes
order by op, bytes;
