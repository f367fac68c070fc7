-- How well do we know what time it was on each rank?
-- error: 95 % of the estimate; bias: what no sample shows; bound: guaranteed. Violations must be 0.
select rank, clock, method, reference_rank,
       round(offset_ns / 1e6, 6)         as offset_ms,
       round(drift_ppb / 1e3, 3)         as drift_ppm,
       round(error_ns / 1e3, 3)          as error_us,
       round(bias_ns / 1e3, 3)           as bias_us,
       round(bound_ns / 1e3, 3)          as bound_us,
       samples,
       round(residual_p95_ns / 1e3, 3)   as residual_p95_us,
       violations
from clock_fit
order by rank, clock;
