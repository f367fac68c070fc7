-- What did NCCL's proxy threads wait for: the GPU, the peer, the network, or a flush?
-- Recorded by `rank-agent exec --nccl-detail proxy`; the rest of an operation's time it waited for nothing NCCL tells of.
select rank, peer,
       case when is_send then 'send' else 'receive' end           as direction,
       count(*)                                                   as operations,
       count(*) filter (end_ns is null)                           as unfinished,
       round(sum(bytes) / 1048576.0, 2)                           as mib,
       round(sum(end_ns - start_ns) / 1e6, 3)                     as time_ms,
       round(sum(gpu_wait_ns) / 1e6, 3)                           as gpu_wait_ms,
       round(sum(peer_wait_ns) / 1e6, 3)                          as peer_wait_ms,
       round(sum(net_wait_ns) / 1e6, 3)                           as net_wait_ms,
       round(sum(flush_wait_ns) / 1e6, 3)                         as flush_wait_ms
from nccl_proxy
group by rank, peer, direction
order by time_ms desc nulls last, rank, peer, direction;
