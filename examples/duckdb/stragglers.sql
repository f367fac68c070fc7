-- Which rank slows the others down, by how much a step, why, and how sure is that?
-- cause: makes others wait by its own work; victim: waits. The interval is the 95 % interval of the excess.
select rank, verdict, reason,
       round(step_delay_ns / 1e6, 3)                                               as step_delay_ms,
       round(own_excess_ns / 1e6, 3)                                               as own_excess_ms,
       round(own_excess_low_ns / 1e6, 3)                                           as from_ms,
       round(own_excess_high_ns / 1e6, 3)                                          as to_ms,
       round(caused_wait_ns / 1e6, 3)                                              as caused_wait_ms,
       round(suffered_wait_ns / 1e6, 3)                                            as suffered_wait_ms,
       round(z, 1) as z, round(persistence, 2) as persistence, round(slowdown, 3)  as slowdown,
       evidence_range,
       round(evidence_excess_ns / 1e6, 3)                                          as evidence_excess_ms
from stragglers
order by step_delay_ns desc, rank;
