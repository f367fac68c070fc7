-- Where does the time of each rank's steps go?
-- The five parts sum to wall.
select rank, device_id, step,
       round(wall_ns / 1e6, 3)         as wall_ms,
       round(compute_ns / 1e6, 3)      as compute_ms,
       round(overlap_ns / 1e6, 3)      as overlap_ms,
       round(exposed_comm_ns / 1e6, 3) as exposed_comm_ms,
       round(memory_ns / 1e6, 3)       as memory_ms,
       round(idle_ns / 1e6, 3)         as idle_ms
from step_breakdown
order by step, rank, device_id;
