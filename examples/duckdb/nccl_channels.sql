-- Do the channels of NCCL's operations begin and end together, and how well are their times known?
-- Stamps of one GPU's timer are compared with one another, so that the error of the host's clock is not in the spreads.
with operations as (
    select rank, comm_id, op, seq, peer,
           count(*)                                               as channels,
           max(gpu_start_ns) - min(gpu_start_ns)                  as start_spread_ns,
           max(gpu_end_ns) - min(gpu_end_ns)                      as end_spread_ns,
           max(gpu_end_ns) - min(gpu_start_ns)                    as dur_ns,
           max(clock_error_ns)                                    as clock_error_ns
    from nccl_channels
    where phase is null and not suspect
    group by rank, comm_id, op, seq, peer
)
select rank, op, channels,
       count(*)                                                   as operations,
       round(median(dur_ns) / 1e3, 1)                             as median_us,
       round(median(start_spread_ns) / 1e3, 3)                    as start_spread_us,
       round(median(end_spread_ns) / 1e3, 3)                      as end_spread_us,
       round(max(end_spread_ns) / 1e3, 3)                         as worst_end_spread_us,
       round(max(clock_error_ns) / 1e3, 1)                        as clock_error_us
from operations
group by rank, op, channels
order by rank, op, channels;
