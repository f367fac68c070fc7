-- Which rank slows the others down, by how much a step, why, and how sure is that?
-- cause: makes others wait by its own work; victim: waits. The interval is the 95 % interval of the own excess. If the verdict
-- stands on a range, the evidence columns decide: they measure every rank in that range.
select rank, verdict, stands_on, reason,
       round(step_delay_ns / 1e6, 3)                                               as step_delay_ms,
       round(own_excess_ns / 1e6, 3)                                               as own_excess_ms,
       round(own_excess_low_ns / 1e6, 3)                                           as from_ms,
       round(own_excess_high_ns / 1e6, 3)                                          as to_ms,
       round(caused_wait_ns / 1e6, 3)                                              as caused_wait_ms,
       round(suffered_wait_ns / 1e6, 3)                                            as suffered_wait_ms,
       round(z, 1) as z, round(persistence, 2) as persistence, round(slowdown, 3)  as slowdown,
       evidence_range,
       round(evidence_excess_ns / 1e6, 3)                                          as evidence_excess_ms,
       round(evidence_z, 1)                                                        as evidence_z,
       doubt
from stragglers
order by list_position(['cause', 'undecided', 'victim', 'ok'], verdict), step_delay_ns desc, suffered_wait_ns desc, rank;
